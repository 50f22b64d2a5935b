"""The limits that a child process of the server sets itself first; it also ends when the server does."""

import contextlib
import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1
#: Children run at a lower priority than the service.
_NICE = 10


def limit(server: int, memory_bytes: int, cpu_seconds: int, *, gives_way: bool = True) -> None:
    """Bound memory and time of this process, and end it when the process ``server`` ends.

    ``gives_way``: it also lowers its priority.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        sys.exit("the server is gone")
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if gives_way:
        with contextlib.suppress(OSError):  # a systemd unit may forbid it
            os.nice(_NICE)
