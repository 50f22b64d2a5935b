"""A process of the server that calls one function within limits, run as a module of its own.

It reads a task from stdin, one JSON object: the ``function`` by module and name, its ``arguments``, the
``limits``, and the number of the server's process. To stdout it writes a JSON object a line: ``say``, what
the function says on the way; at the end ``ended``, its result, or ``error``, ``message`` and, of a fault
of the program, ``traceback``. The process ends when the server does, since no other one would end it.

What comes back is data, whatever the process has become of what it was fed: the server builds nothing of
it but the records that it expects.
"""

import contextlib
import importlib
import json
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import IO, Any

from models.processes import end_with, python_command

COMMAND = python_command("server.repository.limited_process")
#: Such a process runs at a lower priority than the service.
_NICE = 10
#: The end of a traceback says where.
_TRACEBACK_CHARACTERS = 16 << 10


@dataclass(frozen=True)
class Limits:
    """What one process may take: bytes of memory, seconds of CPU time. ``gives_way``: to the service."""

    memory_bytes: int
    cpu_seconds: int
    gives_way: bool = True


@dataclass(frozen=True)
class ProgressMessage:
    """What the function says on the way."""

    message: Any


@dataclass(frozen=True)
class Ended:
    """The last message, unless there was an error: what the function has returned."""

    result: Any


class ChildFaultError(Exception):
    """A fault of the program in such a process; its text is the traceback there."""


@dataclass(frozen=True)
class Failed:
    """The last message after an error: its class, as module:name, its text, and a fault's traceback."""

    error: str
    message: str
    traceback: str = ""

    @property
    def fault(self) -> ChildFaultError | None:
        """The cause of the error that the server raises."""
        return ChildFaultError(f"in another process:\n{self.traceback}") if self.traceback else None


Message = ProgressMessage | Ended | Failed


def task(function: Callable[..., Any], arguments: tuple[Any, ...], limits: Limits) -> bytes:
    """Return what has a process call ``function``, of a module, with ``arguments`` that JSON has."""
    return json.dumps(
        {
            "function": name_of(function),
            "arguments": arguments,
            "limits": asdict(limits),
            "server": os.getpid(),
        }
    ).encode()


def name_of(named: Callable[..., Any]) -> str:
    """Return module and name of a function or class."""
    return f"{named.__module__}:{named.__qualname__}"


def message_of(line: bytes) -> Message:
    """Return the message in a ``line`` of the process.

    Raises:
        ValueError: it is none.
    """
    try:
        document = json.loads(line)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc
    match document:
        case {"say": message}:
            return ProgressMessage(message)
        case {"ended": result}:
            return Ended(result)
        case {"error": str(error), "message": str(text), "traceback": str(traceback)}:
            return Failed(error, text, traceback[-_TRACEBACK_CHARACTERS:])
    raise ValueError(f"no message: {line[:60]!r}")


# Inside the process.

_to_server: IO[bytes]


def say(message: Any) -> None:
    """Send ``message``, which JSON has, to the server, from inside the function that it called."""
    _send({"say": message})


def _send(message: dict[str, Any]) -> None:
    _to_server.write(json.dumps(message).encode() + b"\n")
    _to_server.flush()


def limit(limits: Limits, server: int) -> None:
    """Bound memory and time of this process, and end it when the process ``server`` ends."""
    end_with(server)
    resource.setrlimit(resource.RLIMIT_DATA, (limits.memory_bytes, limits.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_seconds, limits.cpu_seconds + 5))
    if limits.gives_way:
        with contextlib.suppress(OSError):  # a systemd unit may forbid it
            os.nice(_NICE)


def main() -> None:
    """Do the task that is read from stdin."""
    global _to_server  # noqa: PLW0603  one task a process
    _to_server = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries may write to stdout, too
    todo = json.load(sys.stdin.buffer)
    limit(Limits(**todo["limits"]), todo["server"])
    module, _, name = todo["function"].partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
        _send({"ended": function(*todo["arguments"])})
    except Exception as exc:  # noqa: BLE001  the server raises it again
        traced = "" if isinstance(exc, MemoryError) else _traced(exc)
        _send({"error": name_of(type(exc)), "message": str(exc), "traceback": traced})


def _traced(exc: Exception) -> str:
    """Return the traceback of ``exc`` if it is a fault of the program."""
    from traceback import format_exception

    from server.faults import (
        traceable,
    )  # the packages below, which most functions import by themselves

    return "".join(format_exception(exc)) if traceable(exc) else ""


if __name__ == "__main__":
    # The function says things through this module, which must not be __main__.
    from server.repository.limited_process import main as named

    named()
