"""What a process that works for the server does first: it bounds itself, and goes with the server."""

import contextlib
import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1
#: The service computes first.
_NICE = 10


def limit(server: int, memory_bytes: int, cpu_seconds: int, *, gives_way: bool = True) -> None:
    """Bound memory and time of this process, and end it when that of the ``server`` ends.

    ``gives_way``: to whatever else computes.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        sys.exit("the server is gone")
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if gives_way:
        with contextlib.suppress(OSError):  # a unit may forbid it
            os.nice(_NICE)
