"""A process that measures as models/runtime/allocations.py does, by the pages that the kernel counts."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

from models.runtime import allocations

_PROCESS = Path("/proc/self")


def pages_at_most(work: Callable[[], object]) -> int:
    """Return how many bytes of memory more than before this process has at most while ``work`` runs."""
    (_PROCESS / "clear_refs").write_text("5")  # the highest mark is what there is now
    before = _most()
    work()
    return _most() - before


def _most() -> int:
    found = re.search(r"VmHWM:\s*(\d+) kB", (_PROCESS / "status").read_text())
    assert found is not None
    return int(found[1]) << 10


if __name__ == "__main__":
    allocations.peak_bytes = pages_at_most
    allocations.main(int(sys.argv[1]))
