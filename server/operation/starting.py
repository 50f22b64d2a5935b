"""What the service manager is told while models load: which one, how far, and that it goes on."""

import asyncio
from collections.abc import Callable, Sequence

from server.memory.cgroup import memory_limited
from server.operation.notify import Notifier
from server.repository.entry import Entry, Loading
from server.settings.sizes import format_size

#: A start may take so much longer after each sign of progress: TimeoutStartSec of the unit.
GRACE_SECONDS = 90.0
_LOOK_SECONDS = 0.5


def describe(entries: Sequence[Entry], read_bytes: int) -> str:
    """Return one line: what loads and how far it is, how many models serve, how much has been read.

    It changes whenever loading has made progress.
    """
    loading = [entry for entry in entries if isinstance(entry.condition, Loading)]
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
        await asyncio.sleep(_LOOK_SECONDS)
