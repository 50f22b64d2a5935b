"""A pack with one thread, while a compiler computes with all.

A process has one thread pool for all sessions of ONNX Runtime, whose size is decided once, and ONNX Runtime
refuses sessions without it (models/runtime/sessions.py). So one thread needs another process. It reads a
plan and inputs from stdin and answers on stdout, again and again: a line of JSON, then arrays as in files
of NumPy. It takes a second of a processor to start.
"""

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Literal

import numpy as np
from pydantic import BaseModel

from loader.errors import LoaderError
from models.packs.pack import Pack, read_pack
from models.processes import Child, end_with, python_command, start
from models.runtime.sessions import claim_process
from pipeline.checking.engines import Arrays, Single, TrialEngines
from pipeline.devices.base import Device, DeviceError
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.errors import EngineError
from pipeline.planning.plan import Choice, PlanError

# The process writes the graphs of joined launches to files in memory.
_MAX_FILE_BYTES = 64 << 20
# Its interpreter and libraries: 44 MB were measured.
_PROCESS_BYTES = 48 << 20


class _Message(BaseModel):
    """The line before arrays: their ``names``, and how many bytes they are."""

    names: list[str] = []
    n_bytes: int = 0


class _Question(_Message):
    """A plan to run in, and inputs."""

    architecture: str
    choice: Choice


class _Reply(_Message):
    """Outputs, or the ``error`` with which a run has ended."""

    error: Literal["", "failure", "memory"] = ""
    text: str = ""


_ERRORS = {"failure": EngineError, "memory": MemoryError}


def question(architecture: str, choice: Choice, inputs: Arrays) -> bytes:
    """Return what has the process answer ``inputs``; arguments as of ``Single``."""
    return _serialised(_Question(architecture=architecture, choice=choice), inputs)


def reply(pipe: IO[bytes]) -> Arrays:
    """Return the outputs that the process has written.

    Raises:
        EngineError, MemoryError: it could not answer. ValueError: it has ended.
    """
    message = _Reply.model_validate_json(pipe.readline())
    outputs = _arrays(message, pipe)
    if message.error:
        raise _ERRORS[message.error](message.text)
    return outputs


def _serialised(message: _Message, arrays: Arrays) -> bytes:
    file = io.BytesIO()
    # Strings as NumPy's own type: objects would be pickled.
    strings_or_not = [
        item.astype("U") if item.dtype.kind == "O" else item for item in arrays.values()
    ]
    np.savez(file, *strings_or_not)
    counted = message.model_copy(update={"names": list(arrays), "n_bytes": file.tell()})
    return counted.model_dump_json().encode() + b"\n" + file.getvalue()


def _arrays(message: _Message, pipe: IO[bytes]) -> Arrays:
    with np.load(io.BytesIO(pipe.read(message.n_bytes))) as file:
        return {name: file[f"arr_{index}"] for index, name in enumerate(message.names)}


@contextmanager
def one_thread(pack: Pack, device: Device) -> Iterator[Single | None]:
    """Yield what runs ``pack`` with one thread; None where ``device`` has no more, or is no CPU's."""
    if device.threads == 1:
        yield None
        return
    with closing(CpuDevice(1)) as single:
        if single.threads == 1:  # sessions of this process have threads of their own
            yield TrialEngines(pack, single)
            return
    with closing(OtherProcess(pack.folder)) as process:
        yield process


class OtherProcess:
    """Engines in a process of their own, which starts with the first request."""

    n_bytes = _PROCESS_BYTES

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._child: Child | None = None

    def answer(self, architecture: str, choice: Choice, inputs: Arrays) -> Arrays:
        """As ``Single``."""
        child = self._child or self._start()
        assert child.process.stdin is not None
        assert child.process.stdout is not None
        try:
            child.process.stdin.write(question(architecture, choice, inputs))
            child.process.stdin.flush()
            return reply(child.process.stdout)
        except (OSError, ValueError) as exc:
            child.process.wait()
            self.close()
            if child.process.returncode == -signal.SIGKILL:
                raise MemoryError("the system ended the process with one thread") from exc
            raise EngineError(f"its process has ended: {child.exit_text()}") from exc

    def close(self) -> None:
        """End the process; a later request would start another."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def _start(self) -> Child:
        command = python_command(
            "pipeline.checking.one_thread", str(os.getpid()), str(self._folder)
        )
        try:
            self._child = start(command, _MAX_FILE_BYTES)
        except OSError as exc:
            raise MemoryError(f"no process with one thread starts: {exc.strerror or exc}") from exc
        return self._child


# The process.


def serve(single: Single, questions: IO[bytes], replies: IO[bytes]) -> None:
    """Answer what is read from ``questions`` until that ends."""
    while line := questions.readline():
        message = _Question.model_validate_json(line)
        inputs = _arrays(message, questions)
        try:
            outputs = single.answer(message.architecture, message.choice, inputs)
            replies.write(_serialised(_Reply(), outputs))
        except (EngineError, DeviceError, LoaderError, PlanError) as exc:
            replies.write(_serialised(_Reply(error="failure", text=str(exc)), {}))
        except MemoryError as exc:
            replies.write(_serialised(_Reply(error="memory", text=str(exc)), {}))
        replies.flush()


def main(parent: int, folder: Path) -> None:
    """Answer for the process ``parent``, and end when it does."""
    end_with(parent)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries may write to stdout, too
    claim_process()
    with closing(CpuDevice(1)) as device:
        serve(TrialEngines(read_pack(folder), device), sys.stdin.buffer, replies)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
