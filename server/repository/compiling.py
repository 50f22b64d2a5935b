"""Compiling in a child process, from the side of the server: what the child says, its end, its errors."""

import asyncio
import contextlib
import pickle
import signal
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any

from server.errors import ServiceError, TooLargeError
from server.repository.compiling_child import UploadStep, compile_file
from server.repository.limited_process import COMMAND, Ended, Limits, Task
from server.requests.waiting import to_its_end
from server.settings.sizes import format_size

_SIZE_BYTES = 4


class Compiler:
    """Compiles for ``target`` within ``limits``; ``function``: what the process calls for that."""

    def __init__(
        self, target: str, limits: Limits, function: Callable[..., None] = compile_file
    ) -> None:
        self._target = target
        self._limits = limits
        self._function = function

    async def compiled(
        self, source: Path, destination: Path, shapes: Mapping[str, tuple[int, ...]]
    ) -> AsyncGenerator[UploadStep | str]:
        """Compile ``source`` into ``destination``/1; yield the steps, and warnings as texts, on the way.

        ``shapes``: of inputs, whole, by name.

        The process has ended when this ends, also after an error.

        Raises:
            InvalidRequestError: the file cannot be compiled. TooLargeError: not within the limits.
            SpoolError: the disk is full. ServiceError: a fault of the server.
        """
        arguments = source, destination, self._target, dict(shapes)
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        message: Any = None
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(pickle.dumps(Task(self._function, arguments, self._limits)))
            process.stdin.close()
            async for message in _messages(process.stdout):
                if isinstance(message, UploadStep | str):
                    yield message
            await process.wait()  # its output has ended; now its status is needed
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await to_its_end(process.wait())
        if isinstance(message, MemoryError):
            raise self._over_memory()
        if isinstance(message, Exception):
            raise message
        if not isinstance(message, Ended):
            raise self._killed(-(process.returncode or 0))

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


async def _messages(stream: asyncio.StreamReader) -> AsyncGenerator[Any]:
    """Yield what the process says until it ends, as multiprocessing.connection writes it."""
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            size = int.from_bytes(await stream.readexactly(_SIZE_BYTES), "big")
            yield pickle.loads(await stream.readexactly(size))  # noqa: S301  our own process
