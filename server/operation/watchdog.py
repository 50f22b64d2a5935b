"""Engines that are stuck are replaced, not the server: looked for every second.

A sweep looks at its deadline between kernels and while it waits. What does not come back from a kernel, or
from the disk, for several times as long as its requests had will not come back in time for others, either.
"""

import asyncio
import logging
from collections.abc import Iterator

from server.repository.entry import Entry
from server.repository.repository import Repository

_log = logging.getLogger(__name__)

#: A sweep is stuck when it takes so many times what its requests had,
FACTOR = 2.0
#: and so long: a disk that is busy is not stuck, and a deadline of milliseconds says nothing of engines.
LEAST_SECONDS = 10.0
_LOOK_SECONDS = 1.0


def stuck(
    repository: Repository, factor: float = FACTOR, least_seconds: float = LEAST_SECONDS
) -> Iterator[Entry]:
    """Yield the models whose engines are stuck."""
    for entry in repository.entries():
        worker = entry.worker
        if worker is not None and not worker.abandoned and worker.stuck(factor, least_seconds):
            yield entry


async def watch(repository: Repository) -> None:
    """Replace stuck engines until cancelled."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        for entry in list(stuck(repository)):
            await replace_engine(repository, entry)


async def replace_engine(repository: Repository, entry: Entry) -> None:
    """Serve a model with another engine; where there is no room for one it stays unloaded, and says why.

    What the stuck one holds stays reserved until it ends, and for ever where the disk may write to it.
    """
    if entry.worker is None:
        return
    why = "a sweep did not come back, and its engine was given up"
    entry.worker.abandon(why)
    try:
        await repository.load(entry.name)
    except Exception as exc:  # noqa: BLE001  others are served, and this one says why it is not
        _log.error("model %s is not served again: %s", entry.name, exc)
    else:
        _log.warning("model %s is served by another engine: %s", entry.name, why)
