"""The process that compiles an uploaded file: ``python -m server.repository.compiling_child TASK``.

TASK is JSON (``Task``). Each line that it writes is JSON: a step and its detail, at the end
``{"pack": ...}`` or ``{"error": ..., "kind": ...}``. It limits itself before it reads the client's file,
and ends with the server, since no other process would end it.
"""

import contextlib
import errno
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from server.repository.child_limits import limit

#: The cause of a failure: the file, too little memory, the disk, or a fault of the compiler.
Kind = Literal["model", "memory", "disk", "fault"]


@dataclass(frozen=True)
class Task:
    """What to compile. ``source``: the file; ``destination``: FOLDER/NAME, which gets version 1.

    ``server``: the number of its process.

    ``shapes``: of inputs, whole, by name.
    """

    source: str
    destination: str
    target: str
    memory_bytes: int
    cpu_seconds: int
    server: int
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def text(self) -> str:
        """Return the task as the argument of the process."""
        return json.dumps(asdict(self))


def main(argument: str) -> int:
    """Compile as ``argument`` says; return the status of the process."""
    task = Task(**json.loads(argument))
    try:
        with _failures():
            limit(task.server, task.memory_bytes, task.cpu_seconds)
            _say(pack=str(_compile(task)))
    except _FailedError as exc:
        _say(error=str(exc), kind=exc.kind)
        return 1
    return 0


class _FailedError(Exception):
    def __init__(self, message: str, kind: Kind) -> None:
        super().__init__(message)
        self.kind = kind


# Messages of C++, of threads, and of the loader of libraries, which are loaded within the limit, too.
_OUT_OF_MEMORY = (
    "Cannot allocate memory",
    "bad_alloc",
    "bad allocation",
    "cannot map zero-fill pages",
    "failed to map segment",
)


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Turn every error of compiling into one with a message and a kind."""
    from models.errors import ModelError

    try:
        yield
    except MemoryError as exc:
        raise _FailedError("compiling it takes more memory than it may", "memory") from exc
    except ModelError as exc:
        if _is_short(exc):
            raise _FailedError("compiling it takes more memory than it may", "memory") from exc
        raise _FailedError(str(exc), "disk" if _is_full(exc) else "model") from exc
    except OSError as exc:
        raise _FailedError(exc.strerror or str(exc), "disk" if _is_full(exc) else "fault") from exc
    except Exception as exc:
        kind: Kind = "memory" if _is_short(exc) else "fault"
        raise _FailedError(f"{type(exc).__name__}: {exc}", kind) from exc


def _is_short(exc: BaseException) -> bool:
    """Return whether memory was lacking, which libraries report by message alone."""
    return any(words in str(exc) for words in _OUT_OF_MEMORY)


def _is_full(exc: BaseException | None) -> bool:
    while exc is not None:
        if isinstance(exc, OSError) and exc.errno in {errno.ENOSPC, errno.EDQUOT}:
            return True
        exc = exc.__cause__
    return False


def _compile(task: Task) -> Path:
    from models.compiler import CompileOptions, compile_onnx
    from models.packs.target import named_target
    from models.runtime.sessions import claim_process
    from pipeline.checking.checker import checker
    from pipeline.devices.find import device_measure

    claim_process()  # stacks of threads that each session starts would count against the limit
    source, target = Path(task.source), named_target(task.target)
    options = CompileOptions(
        target=target,
        shapes={name: tuple(shape) for name, shape in task.shapes.items()},
        measure=device_measure(target),
        warn=_warn,
        accept=checker(source, target, _warn, _step),
    )
    return compile_onnx(source, Path(task.destination), options, _step)


def _step(step: str, detail: str = "") -> None:
    _say(step=step, detail=detail)


def _warn(text: str) -> None:
    _say(warning=text)


def _say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
