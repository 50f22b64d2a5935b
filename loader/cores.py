"""Cores of threads: at once for those that read, copy or answer; one each for threads that compute."""

import ctypes
import functools
import os
import platform
import threading
from collections.abc import Collection, Sequence
from typing import Literal

# Moving before computing: threads that read, copy or answer need a core for little time, but at once.
#
# Compute threads fill all cores, and Linux lets a thread that wakes wait for up to a time slice (3
# ms); a read of 2 MiB takes less than that. What helps is a short slice (Linux 6.12, without privileges)
# and a lower nice level (CAP_SYS_NICE or RLIMIT_NICE). An event loop takes the slice alone: with a
# lower nice level a flood of requests would keep kernels from every core. docs/research/profile.md
# has the figures.

Priority = Literal["nice", "slice", "usual"]

#: Nice levels below those of the threads that compute.
LEVELS = 10
_LOWEST = -20
_SLICE_NS = 100_000  # the shortest that Linux takes
_SCHED_OTHER = 0
#: Of sched_setattr: threads that this one starts are usual ones.
_RESET_ON_FORK = 1
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}


class _Attributes(ctypes.Structure):
    """struct sched_attr of sched_setattr(2), the first version of it."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def hasten() -> Priority:
    """Let the calling thread run soon after it wakes; return what the kernel allowed.

    "slice": no lower nice level is allowed; kernels before 6.12 take the slice without using it.
    "usual": nothing can be changed here.
    """
    now = os.getpriority(os.PRIO_PROCESS, 0)
    if _schedule(max(now - LEVELS, _LOWEST)):
        return "nice"
    return "slice" if _schedule(now) else "usual"


def wake_soon() -> bool:
    """Let the calling thread, and none that it starts, run soon after it wakes; return whether it may.

    It gets no more of a core than others: only a short slice is asked for, which needs no privilege. A nice
    level below 0 is left as it is: threads that are started would lose it.
    """
    now = os.getpriority(os.PRIO_PROCESS, 0)
    return now >= 0 and _schedule(now, _RESET_ON_FORK)


def spread(cores: Collection[int]) -> None:
    """Let the calling thread run on all of ``cores``, as far as the kernel allows.

    A thread begins where the one that starts it is kept, which may be on one core, to compute there.
    """
    try:
        os.sched_setaffinity(0, cores)
    except OSError:
        return


@functools.cache
def reader_priority() -> Priority:
    """Return what ``hasten`` reaches in this process, tried on a thread that ends."""
    priorities: list[Priority] = []
    thread = threading.Thread(
        target=lambda: priorities.append(hasten()), name="priority", daemon=True
    )
    thread.start()
    thread.join()
    return priorities[0]


def _schedule(nice: int, flags: int = 0) -> bool:
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return False
    attributes = _Attributes(
        size=ctypes.sizeof(_Attributes),
        policy=_SCHED_OTHER,
        flags=flags,
        nice=nice,
        runtime=_SLICE_NS,
    )
    return bool(_libc().syscall(number, 0, ctypes.byref(attributes), 0) == 0)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def allowed_cores() -> tuple[int, ...]:
    """Return the cores that the calling thread may run on, ascending."""
    return tuple(sorted(os.sched_getaffinity(0)))


def cores_for(workers: int, first: int = 0) -> tuple[int, ...]:
    """Return a core for each of ``workers``, of those allowed from the ``first``-th on; () if too few."""
    allowed = allowed_cores()
    if workers > len(allowed):
        return ()
    return tuple(allowed[(first + number) % len(allowed)] for number in range(workers))


class pinned:  # noqa: N801  it is called as a function is
    """Keep the calling thread on ``cores`` inside the context, as far as the kernel allows.

    () leaves it where it is, and so does a thread that is kept on one core already. Threads that it starts
    meanwhile would inherit that.
    """

    def __init__(self, cores: Sequence[int]) -> None:
        self._cores = cores
        self._before: Collection[int] = ()

    def __enter__(self) -> None:
        self._before = os.sched_getaffinity(0) if self._cores else ()
        if len(self._before) > 1:
            spread(self._cores)

    def __exit__(self, *_: object) -> None:
        if len(self._before) > 1:
            spread(self._before)
