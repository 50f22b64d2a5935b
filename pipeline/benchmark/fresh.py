"""What a contender starts with: a memory cgroup of its own, and files that nobody read before."""

import contextlib
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from pipeline.peers.cgroup import MemoryGroup, memory_group

#: Makes a group of this name until its context ends, or raises OSError.
MakeGroup = Callable[[str], AbstractContextManager[MemoryGroup]]


def group_or_note(
    stack: ExitStack, name: str, notes: list[str], make: MakeGroup = memory_group
) -> MemoryGroup | None:
    """Return a group until ``stack`` ends; None: none could be made, and ``notes`` say why."""
    try:
        return stack.enter_context(make(f"layerstream-bench-{name}"))
    except OSError as exc:
        notes.append(f"memory is not measured: {exc.strerror or exc}: a memory cgroup needs root")
        return None


def let_go(files: Sequence[Path]) -> None:
    """Take ``files`` out of the page cache, where the system lets them go."""
    for path in files:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
