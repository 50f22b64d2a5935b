"""Compiling in a child process, from the side of the server: the child's lines, its end, its errors."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.errors import InvalidRequestError, ServiceError, SpoolError, TooLargeError
from server.repository.compiling_child import Kind, Task
from server.requests.waiting import to_its_end
from server.settings.sizes import format_size

_COMMAND = (sys.executable, "-m", "server.repository.compiling_child")
#: The longest line that is read from the child.
_LONGEST_LINE = 1 << 16


@dataclass(frozen=True)
class Limits:
    """What one compilation may take: bytes of memory, seconds of CPU time."""

    memory_bytes: int
    cpu_seconds: int


class Compiler:
    """Compiles for ``target`` within ``limits``; ``command``: of the process that does a task."""

    def __init__(self, target: str, limits: Limits, command: Sequence[str] = _COMMAND) -> None:
        self._target = target
        self._limits = limits
        self._command = tuple(command)

    async def compiled(
        self, source: Path, destination: Path, shapes: Mapping[str, tuple[int, ...]]
    ) -> AsyncGenerator[dict[str, Any]]:
        """Compile ``source`` into ``destination``/1; yield the steps and warnings on the way.

        ``shapes``: of inputs, whole, by name.

        The process has ended when this ends, also after an error.

        Raises:
            InvalidRequestError: the file cannot be compiled. TooLargeError: not within the limits.
            SpoolError: the disk is full. ServiceError: a fault of the server.
        """
        task = Task(
            *(str(source), str(destination), self._target),
            *(self._limits.memory_bytes, self._limits.cpu_seconds, os.getpid()),
            shapes=dict(shapes),
        )
        process = await asyncio.create_subprocess_exec(
            *self._command,
            task.text(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=_LONGEST_LINE,
        )
        fields: dict[str, Any] = {}
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                fields = _read(line)
                if not fields.keys() & {"pack", "error"}:
                    yield fields
            await process.wait()  # its output has ended; now its status is needed
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await to_its_end(process.wait())
        if "pack" not in fields:
            raise self._failure(fields, process.returncode or 0)

    def _failure(self, fields: dict[str, Any], status: int) -> ServiceError:
        """Return the error for a process that ended without a pack, with this last line and status."""
        if "error" not in fields:
            return self._killed(-status)
        message, kind = str(fields["error"]), fields.get("kind")
        if kind == "memory":
            return self._over_memory()
        failures: dict[Kind, type[ServiceError]] = {
            "model": InvalidRequestError,
            "disk": SpoolError,
        }
        return failures.get(kind, ServiceError)(message)  # type: ignore[arg-type]

    def _killed(self, number: int) -> ServiceError:
        if number == signal.SIGXCPU:
            allowed = self._limits.cpu_seconds
            return TooLargeError(f"compiling it takes more than {allowed} s (setting compile_time)")
        # A process that lacks memory ends by one of these signals.
        if number in {signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV}:
            return self._over_memory()
        return ServiceError(f"compiling it ended without a word (status {-number})")

    def _over_memory(self) -> ServiceError:
        allowed = format_size(self._limits.memory_bytes)
        return TooLargeError(
            f"compiling it takes more memory than there is, or than {allowed} (setting compile_memory)"
        )


def _read(line: bytes) -> dict[str, Any]:
    """Return the fields of a line of the child; none where a library has written the line."""
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
