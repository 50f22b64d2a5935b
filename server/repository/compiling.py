"""Compiling in a child process, from the side of the server: its lines, its end, and what that means."""

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
from server.requests.uninterrupted import to_its_end
from server.settings.sizes import format_size

_COMMAND = (sys.executable, "-m", "server.repository.compiling_child")
#: Of a line that the child writes, and of what it says on stderr.
_LONGEST_LINE = 1 << 16


@dataclass(frozen=True)
class Limits:
    """What one compilation may take: bytes of memory, seconds of CPU time."""

    memory_bytes: int
    cpu_seconds: int


class Compiler:
    """Compiles for ``target`` within ``limits``; ``command``: what runs a task, a process of our own."""

    def __init__(self, target: str, limits: Limits, command: Sequence[str] = _COMMAND) -> None:
        self._target = target
        self._limits = limits
        self._command = tuple(command)

    async def compiled(
        self, source: Path, destination: Path, shapes: Mapping[str, tuple[int, ...]]
    ) -> AsyncGenerator[dict[str, Any]]:
        """Compile ``source`` into ``destination``/1; yield the steps and warnings on the way.

        ``shapes``: of inputs, whole, by name.

        The process is gone when this ends, however it does.

        Raises:
            InvalidRequestError: the file cannot be compiled. TooLargeError: not within the limits.
            SpoolError: the disk is full. ServiceError: a fault of ours.
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
        said: dict[str, Any] = {}
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                said = _read(line)
                if not said.keys() & {"pack", "error"}:
                    yield said
            await process.wait()  # it has closed its side, and says with its status how it ended
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await to_its_end(process.wait())
        if "pack" not in said:
            raise self._failure(said, process.returncode or 0)

    def _failure(self, said: dict[str, Any], status: int) -> ServiceError:
        """Return what it means that the process ended so."""
        if "error" not in said:
            return self._killed(-status)
        message, kind = str(said["error"]), said.get("kind")
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
        if number in {
            signal.SIGKILL,
            signal.SIGABRT,
            signal.SIGSEGV,
        }:  # what a lack of memory ends in
            return self._over_memory()
        return ServiceError(f"compiling it ended without a word (status {-number})")

    def _over_memory(self) -> ServiceError:
        allowed = format_size(self._limits.memory_bytes)
        return TooLargeError(
            f"compiling it takes more memory than there is, or than {allowed} (setting compile_memory)"
        )


def _read(line: bytes) -> dict[str, Any]:
    """Return what a line of the child says; nothing, where a library has written it."""
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
