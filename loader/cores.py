"""Cores for threads that shall not take each other's: partitions, and who launches beside a pool."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from loader.priority import spread


def allowed_cores() -> tuple[int, ...]:
    """Return the cores that the calling thread may run on, ascending."""
    return tuple(sorted(os.sched_getaffinity(0)))


def cores_for(workers: int, first: int = 0) -> tuple[int, ...]:
    """Return a core for each of ``workers``, of those allowed from the ``first``-th on; () if too few."""
    allowed = allowed_cores()
    if workers > len(allowed):
        return ()
    return tuple(allowed[(first + number) % len(allowed)] for number in range(workers))


@contextmanager
def pinned(cores: Sequence[int]) -> Iterator[None]:
    """Keep the calling thread on ``cores`` inside the context, as far as the kernel allows.

    () leaves it where it is, and so does a thread that is kept on one core already. Threads that it starts
    meanwhile would inherit that.
    """
    before = os.sched_getaffinity(0)
    if not cores or len(before) == 1:
        yield
        return
    spread(cores)
    try:
        yield
    finally:
        spread(before)
