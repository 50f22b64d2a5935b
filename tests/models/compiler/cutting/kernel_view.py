"""A process that measures as models/runtime/allocations.py does, by the pages that the kernel counts."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

from models.runtime import allocations

_PROCESS = Path("/proc/self")


def max_pages_bytes(work: Callable[[], object]) -> int:
    """Return how many bytes of memory more than before this process has at most while ``work`` runs."""
    (_PROCESS / "clear_refs").write_text("5")  # the highest mark is what there is now
    before = _max_bytes()
    work()
    return _max_bytes() - before


def _max_bytes() -> int:
    match = re.search(r"VmHWM:\s*(\d+) kB", (_PROCESS / "status").read_text())
    assert match is not None
    return int(match[1]) << 10


if __name__ == "__main__":
    allocations.peak_bytes = max_pages_bytes
    allocations.main(int(sys.argv[1]))
