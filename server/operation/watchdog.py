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
_WHY = "a sweep did not come back, and its engine was given up"


def stuck(repository: Repository, factor: float, least_seconds: float) -> Iterator[Entry]:
    """Yield the models whose engines are stuck."""
    for entry in repository.entries():
        worker = entry.worker
        if worker is not None and not worker.abandoned and worker.stuck(factor, least_seconds):
            yield entry


def give_up_leaving(repository: Repository, factor: float, least_seconds: float) -> None:
    """Leave stuck engines of models that leave service to themselves: whoever closes them goes on."""
    for worker in repository.leaving():
        if not worker.abandoned and worker.stuck(factor, least_seconds):
            _log.error("model %s: while it left service %s", worker.served.name, _WHY)
            worker.abandon(_WHY)


async def watch(repository: Repository, factor: float = FACTOR) -> None:
    """Replace stuck engines until cancelled; ``factor``: as Worker.stuck."""
    # Another load may be in the way of a replacement, and what is stuck in the way of that.
    async with asyncio.TaskGroup() as replacing:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            give_up_leaving(repository, factor, LEAST_SECONDS)
            for entry in list(stuck(repository, factor, LEAST_SECONDS)):
                replacing.create_task(replace_engine(repository, entry))


async def replace_engine(repository: Repository, entry: Entry) -> None:
    """Serve a model with another engine; where there is no room for one it is unloaded, and says why.

    What the stuck one holds stays reserved until it ends, and for ever where the disk may write to it.
    """
    worker = entry.worker
    if worker is None:
        return
    worker.abandon(_WHY)
    try:
        is_back = await repository.restore(entry, worker, _WHY)
    except Exception as exc:  # noqa: BLE001  others are served, and this one says why it is not
        _log.error("model %s is not served again: %s", entry.name, exc)
    else:
        if is_back:
            _log.warning("model %s is served by another engine: %s", entry.name, _WHY)
