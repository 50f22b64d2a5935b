"""A process of the server that calls one function within limits, run as a module of its own.

It reads a ``Task`` from stdin. To stdout it writes what the function says on the way, and at the end its
result or its error, each as multiprocessing.connection does. All of it is pickled, and is sent only between
the server and its own process. The process ends when the server does, since no other one would end it.
"""

import contextlib
import ctypes
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

COMMAND = (sys.executable, "-m", "server.repository.limited_process")
_PR_SET_PDEATHSIG = 1
#: Such a process runs at a lower priority than the service.
_NICE = 10


@dataclass(frozen=True)
class Limits:
    """What one process may take: bytes of memory, seconds of CPU time. ``gives_way``: to the service."""

    memory_bytes: int
    cpu_seconds: int
    gives_way: bool = True


@dataclass(frozen=True)
class Task:
    """The ``function`` to call, with ``arguments``; ``server``: the number of the server's process."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    limits: Limits
    server: int = field(default_factory=os.getpid)


@dataclass(frozen=True)
class Ended:
    """The last message, unless there was an error: what the function has returned."""

    result: Any


_to_server: Connection


def say(message: object) -> None:
    """Send ``message`` to the server, from inside the function that it called."""
    _to_server.send(message)


def limit(limits: Limits, server: int) -> None:
    """Bound memory and time of this process, and end it when the process ``server`` ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        sys.exit("the server is gone")
    resource.setrlimit(resource.RLIMIT_DATA, (limits.memory_bytes, limits.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_seconds, limits.cpu_seconds + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limits.gives_way:
        with contextlib.suppress(OSError):  # a systemd unit may forbid it
            os.nice(_NICE)


def main() -> None:
    """Do the task that is read from stdin."""
    global _to_server  # noqa: PLW0603  one task a process
    _to_server = Connection(os.dup(1), readable=False)
    os.dup2(2, 1)  # libraries may write to stdout, too
    task: Task = pickle.load(sys.stdin.buffer)  # noqa: S301  of our own server
    limit(task.limits, task.server)
    try:
        say(Ended(task.function(*task.arguments)))
    except Exception as exc:  # noqa: BLE001  the server raises it again
        say(exc)


if __name__ == "__main__":
    # Pickles name classes by their module, which must not be __main__.
    from server.repository.limited_process import main as named

    named()
