"""Watches while the service runs: over models that load, for the service manager, and over stuck engines.

A sweep looks at its deadline between kernels and while it waits. What does not come back from a kernel, or
from the disk, for several times as long as its requests had will not come back in time for others, either.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from models.sizes import format_size
from server.errors import NotServingError
from server.faults import traceable
from server.memory.process_memory import memory_limited
from server.operation.service_manager import Notifier
from server.repository.entry import Entry
from server.repository.instances import State
from server.repository.repository import Repository

# While models load, the service manager gets status lines and more time.

#: A start may take so much longer after each sign of progress: TimeoutStartSec of the unit.
GRACE_SECONDS = 90.0
_TELL_SECONDS = 0.5


def describe(entries: Sequence[Entry], read_bytes: int) -> str:
    """Return one line: what loads and how far it is, how many models serve, how much has been read.

    It changes whenever loading has made progress.
    """
    loading = [entry for entry in entries if entry.is_loading]
    serving = sum(entry.serves for entry in entries)
    if not entries:
        return "starting"
    what = "; ".join(f"{entry.name}: {entry.reason}" for entry in loading) or "starting"
    read = format_size(read_bytes)
    return f"{what}; {serving} of {len(entries)} tried so far serve, {read} read"


async def tell(notifier: Notifier, look: Callable[[], str]) -> None:
    """Send what ``look`` returns whenever it changes, and with it more time; runs until cancelled.

    A start that makes no progress gets no more time than the unit gave it.
    """
    told = ""
    while True:
        if (now := look()) != told:
            notifier.starting(f"{now}{memory_limited()}", more_seconds=GRACE_SECONDS)
            told = now
        await asyncio.sleep(_TELL_SECONDS)


# Engines that are stuck are replaced, not the server: looked for every second.

_log = logging.getLogger(__name__)

#: A sweep is stuck when it takes so many times what its requests had,
FACTOR = 2.0
#: and at least so long: a busy disk is not stuck, and a deadline of milliseconds is too short to tell.
LEAST_SECONDS = 10.0
_LOOK_SECONDS = 1.0
_WHY = "a sweep did not come back, and its engine was given up"


def stuck(repository: Repository, factor: float, least_seconds: float) -> Iterator[Entry]:
    """Yield the entries of models whose engines are stuck."""
    for entry in repository.entries():
        worker = entry.worker
        if worker is not None and not worker.abandoned and worker.stuck(factor, least_seconds):
            yield entry


def give_up_leaving(repository: Repository, factor: float, least_seconds: float) -> None:
    """Give up stuck engines of models that are being closed, so that closing them goes on."""
    for worker in repository.workers(State.DRAINING):
        if not worker.abandoned and worker.stuck(factor, least_seconds):
            _log.error("model %s: while it left service %s", worker.served.name, _WHY)
            worker.abandon(_WHY)


async def watch(repository: Repository, factor: float = FACTOR) -> None:
    """Replace stuck engines until cancelled; ``factor``: as Worker.stuck."""
    # A replacement may have to wait for another load, and that load for a stuck engine.
    async with asyncio.TaskGroup() as replacing:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            give_up_leaving(repository, factor, LEAST_SECONDS)
            for entry in list(stuck(repository, factor, LEAST_SECONDS)):
                replacing.create_task(replace_engine(repository, entry))


async def follow_idle(repository: Repository) -> None:
    """Have idle models sleep, and close them, as the settings say, until cancelled."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            await repository.close_idle()
            await repository.sleep_idle()
        except NotServingError:  # the server ends
            return
        except Exception:  # noqa: BLE001  after any error the service goes on, and looks again
            _log.exception("idle models cannot be closed, or sleep")


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
    except Exception as exc:  # noqa: BLE001  others are served, and its entry has the error
        _log.error("model %s is not served again: %s", entry.name, exc, exc_info=traceable(exc))
    else:
        if is_back:
            _log.warning("model %s is served by another engine: %s", entry.name, _WHY)
