"""Compiling in a child process, from the side of the server: what the child says, its end, its errors."""

import contextlib
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from models.processes import StandardError, exit_text, start_async
from models.sizes import Lengths, format_size
from pipeline.execution.shielded import run_to_completion
from server.errors import BusyError, InvalidRequestError, ServiceError, SpoolError, TooLargeError
from server.repository.compiling_child import UploadStep, compile_file
from server.repository.limited_process import (
    COMMAND,
    Ended,
    Failed,
    Limits,
    Message,
    ProgressMessage,
    message_of,
    name_of,
    task,
)

#: Of a line of the process: longer warnings than that are none.
_MESSAGE_BYTES = 1 << 20

# Errors of the process by their names; all others are faults of the server.
_KINDS = InvalidRequestError, ServiceError, SpoolError, TooLargeError
_ERRORS = {name_of(kind): kind for kind in _KINDS}


class Compiler:
    """Compiles for ``target`` within ``limits``; ``function``: what the process calls for that."""

    def __init__(
        self, target: str, limits: Limits, function: Callable[..., None] = compile_file
    ) -> None:
        self._target = target
        self._limits = limits
        self._function = function
        self._process: Process | None = None
        self._was_killed = False

    def end(self) -> bool:
        """End the process that compiles, since the system lacks memory; return whether there was one."""
        process = self._process
        if process is None or process.returncode is not None or self._was_killed:
            return False
        self._was_killed = True
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        return True

    async def compiled(
        self, source: Path, destination: Path, shapes: Mapping[str, Lengths]
    ) -> AsyncGenerator[UploadStep | str]:
        """Compile ``source`` into ``destination``/1; yield the steps, and warnings as texts, on the way.

        ``shapes``: of inputs, whole, or lengths of dimensions, by name.

        The process has ended when this ends, also after an error.

        Raises:
            InvalidRequestError: the file cannot be compiled. TooLargeError: not within the limits.
            SpoolError: the disk is full. BusyError: the system lacks memory. ServiceError: a fault of the
            server.
        """
        arguments = str(source), str(destination), self._target, dict(shapes)
        limits = self._limits
        # What it writes is in its memory before: no file of it is larger than that may be.
        process, errors = await start_async(COMMAND, limits.memory_bytes, _MESSAGE_BYTES)
        last: Message | None = None
        self._process, self._was_killed = process, False
        try:
            assert process.stdin is not None
            process.stdin.write(task(self._function, arguments, limits))
            process.stdin.close()
            async with aclosing(_messages(process)) as messages:
                async for last in messages:
                    if isinstance(last, ProgressMessage):
                        yield _step_of(last.message)
            await process.wait()  # its output has ended; now its status is needed
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await run_to_completion(process.wait())
            self._process = None
        if not isinstance(last, Ended):
            error = self._error(last, process.returncode or 0, errors)
            raise error from (last.fault if isinstance(last, Failed) else None)

    def _error(self, last: Message | None, status: int, errors: StandardError) -> ServiceError:
        """Return the error of a process whose ``last`` message was no result."""
        if self._was_killed:
            return BusyError("compiling it was ended: the system lacks memory")
        if not isinstance(last, Failed):
            return self._killed(-status, errors)
        if last.error == name_of(MemoryError):
            return self._over_memory()
        return _ERRORS.get(last.error, ServiceError)(last.message)

    def _killed(self, number: int, errors: StandardError) -> ServiceError:
        if number == signal.SIGXCPU:
            allowed = self._limits.cpu_seconds
            return TooLargeError(f"compiling it takes more than {allowed} s (setting compile_time)")
        # A process that lacks memory ends by one of these signals.
        if number in {signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV}:
            return self._over_memory()
        status = exit_text(-number, errors)
        return ServiceError(f"compiling it ended without a word ({status})")

    def _over_memory(self) -> ServiceError:
        allowed = format_size(self._limits.memory_bytes)
        return TooLargeError(
            f"compiling it takes more memory than there is, or than {allowed} (setting compile_memory)"
        )


async def _messages(process: Process) -> AsyncGenerator[Message]:
    """Yield what the process says until it ends; what is no message of it is a fault of the server."""
    assert process.stdout is not None
    try:
        while line := await process.stdout.readline():
            yield message_of(line)
    except ValueError as exc:  # no JSON, or too long
        raise ServiceError(f"compiling it: the process says what is no message: {exc}") from exc


def _step_of(message: Any) -> UploadStep | str:
    """Return the step or the warning that the process says."""
    match message:
        case {"step": str(step), "detail": str(detail)}:
            return UploadStep(step, detail)
        case str(warning):
            return warning
    raise ServiceError("compiling it: the process says what is no step")
