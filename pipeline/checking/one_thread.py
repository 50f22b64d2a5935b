"""A pack with one thread, while a compiler computes with all.

A process has one thread pool for all sessions of ONNX Runtime, whose size is decided once, and ONNX Runtime
refuses sessions without it (models/runtime/sessions.py). So one thread needs another process: it reads a
request from stdin, a plan and inputs, and answers on stdout, again and again, in records of pickle, which
are between two processes of ours. It takes about 0.6 s to start.
"""

import os
import pickle
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

from loader.errors import LoaderError
from models.packs.pack import Pack, read_pack
from models.processes import Child, end_with, python_command, start
from models.runtime.sessions import claim_process
from pipeline.checking.engines import Arrays, Single, TrialEngines
from pipeline.devices.base import Device, DeviceError
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.errors import EngineError
from pipeline.planning.plan import Choice, PlanError
from pipeline.schedule.architectures import Architecture

# The process writes the graphs of joined launches to files in memory.
_MAX_FILE_BYTES = 64 << 20
# Its interpreter and libraries: 46 MB were measured.
_PROCESS_BYTES = 48 << 20


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

    def answer(self, architecture: Architecture, choice: Choice, inputs: Arrays) -> Arrays:
        """As ``Single``."""
        child = self._child or self._start()
        assert child.process.stdin is not None
        assert child.process.stdout is not None
        try:
            pickle.dump((architecture, choice, dict(inputs)), child.process.stdin)
            child.process.stdin.flush()
            result = pickle.load(child.process.stdout)  # noqa: S301  of our own process
        except (OSError, EOFError, pickle.UnpicklingError) as exc:
            child.process.wait()
            self.close()
            if child.process.returncode == -signal.SIGKILL:
                raise MemoryError("the system ended the process with one thread") from exc
            raise EngineError(f"its process has ended: {child.exit_text()}") from exc
        if isinstance(result, Exception):
            raise result
        return dict(result)

    def close(self) -> None:
        """End the process; a later request would start another."""
        child, self._child = self._child, None
        if child is not None:
            assert child.process.stdin is not None
            assert child.process.stdout is not None
            child.process.kill()
            child.process.wait()
            child.process.stdout.close()
            child.process.stdin.close()

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


def serve(single: Single, requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer what is read from ``requests`` until that ends."""
    while True:
        try:
            request = pickle.load(requests)  # noqa: S301  of our own process
        except EOFError:
            return
        pickle.dump(_result(single, *request), answers)
        answers.flush()


def _result(single: Single, architecture: Architecture, choice: Choice, inputs: Arrays) -> Any:
    """Return the outputs, or the error with which they are not there."""
    try:
        return dict(single.answer(architecture, choice, inputs))
    except (EngineError, DeviceError, LoaderError, PlanError) as exc:
        return EngineError(str(exc))
    except MemoryError as exc:
        return MemoryError(str(exc))


def main(parent: int, folder: Path) -> None:
    """Answer for the process ``parent``, and end when it does."""
    end_with(parent)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries may write to stdout, too
    claim_process()
    with closing(CpuDevice(1)) as device:
        serve(TrialEngines(read_pack(folder), device), sys.stdin.buffer, answers)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
