"""What requests leave free in the heap goes back before it takes what later ones need.

Blocks that several requests had at once leave holes between those that stay, and the C library keeps these:
8 clients with photographs made 4 MiB of them. They are given back only where that counts.
"""

import os
from collections.abc import Callable
from pathlib import Path

from models.runtime.heap import trim_heap
from server.memory.budget import Budget

# Less is not worth it: to trim takes milliseconds, and pages that are given back are touched again.
_WORTH_BYTES = 1 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def anonymous_bytes(statm: Path = Path("/proc/self/statm")) -> int:
    """Return about what no file backs of this process, within a few pages a core; 0 where nobody says.

    Quicker than ``/proc/self/status``: it is asked for every photograph.
    """
    try:
        _, resident, shared, *_ = statm.read_text(encoding="ascii").split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * _PAGE_BYTES


class Trimming:
    """Has the heap trimmed where the process holds more than it should have for ``budget``.

    ``base_bytes``: what it held before any model.
    """

    def __init__(
        self,
        budget: Budget,
        base_bytes: Callable[[], int],
        held: Callable[[], int] = anonymous_bytes,
        trim: Callable[[], None] = trim_heap,
    ) -> None:
        self._budget = budget
        self._base_bytes = base_bytes
        self._held = held
        self._trim = trim
        #: What was held after it was trimmed last, or less since.
        self._left_bytes = 0

    def look(self) -> None:
        """Trim the heap if that is due, and may give back much; on any thread."""
        budget, held = self._budget, self._held()
        most = self._base_bytes() + budget.total_bytes
        self._left_bytes = min(self._left_bytes, held)
        if held > max(most, self._left_bytes + _WORTH_BYTES):
            self._trim()
            self._left_bytes = self._held()
