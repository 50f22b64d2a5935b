"""A core for each thread that computes, where they are as many as there are cores.

Threads of the pool spin between kernels. Beside another process Linux keeps the one that launches kernels
and one that spins on the same core, since that is fair to all three, and both wait for each other: kernels
take twice the time of one thread. docs/architecture.md, "Threads", has the figures.
"""

import contextlib
import os
from collections.abc import Callable, Collection
from pathlib import Path

_TASKS = Path("/proc/self/task")


def tasks() -> frozenset[int]:
    """Return the threads of this process, as the kernel numbers them; none where it does not tell."""
    with contextlib.suppress(OSError):
        return frozenset(int(task.name) for task in _TASKS.iterdir())
    return frozenset()


def keep_apart(
    pool: Collection[int],
    threads: int,
    cores: Collection[int],
    keep: Callable[[int, tuple[int, ...]], None] = os.sched_setaffinity,
) -> tuple[int, ...]:
    """Keep each of ``pool`` on one of ``cores``; return the core that is left for who launches.

    ``pool``: of the ``threads`` that compute all but that one. () and nothing is changed where there are
    more or fewer cores, since then the system has a choice; () where the system refuses.
    """
    if not len(cores) == threads == len(pool) + 1 > 1:
        return ()
    first, *others = sorted(cores)
    try:
        for thread, core in zip(sorted(pool), others, strict=True):
            keep(thread, (core,))
    except OSError:  # a sandbox, or a core that was taken away
        return ()
    return (first,)
