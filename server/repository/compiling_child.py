"""Compiling an uploaded file, as the process does it that the server starts for it (compiling.py)."""

import contextlib
import errno
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from models.sizes import lengths_of
from server.errors import InvalidRequestError, ServiceError, SpoolError, TooLargeError
from server.repository.limited_process import say


@dataclass(frozen=True)
class UploadStep:
    """A step of an upload, and how far it is."""

    step: str
    detail: str = ""


def compile_file(
    source: str, destination: str, target: str, shapes: Mapping[str, Sequence[Any]]
) -> None:
    """Compile ``source`` for ``target`` into ``destination``, FOLDER/NAME, which gets version 1.

    ``shapes``: of inputs, whole, or lengths of dimensions, by name. It says the fields of an ``UploadStep``
    for each step, and warnings as texts.

    Raises:
        InvalidRequestError: the file cannot be compiled. MemoryError: not with so much memory. SpoolError:
        the disk is full. TooLargeError: a file of it would be too large. ServiceError: a fault of the
        compiler.
    """
    with failures():
        from models.compiler import CompileOptions, compile_onnx
        from models.packs.target import named_target
        from models.runtime.sessions import claim_process
        from pipeline.checking.checker import checker
        from pipeline.devices.find import device_measure

        claim_process()  # stacks of threads that each session starts would count against the limit
        named = named_target(target)
        options = CompileOptions(
            target=named,
            shapes={name: lengths_of(shape) for name, shape in shapes.items()},
            measure=device_measure(named),
            warn=say,
            # Another process, for one thread, would take memory beside the limit.
            accept=checker(Path(source), named, say, _step, depth="quick"),
        )
        compile_onnx(Path(source), Path(destination), options, _step)


def _step(step: str, detail: str = "") -> None:
    say(asdict(UploadStep(step, detail)))


# Messages of C++, of threads, and of the loader of libraries, which are loaded within the limit, too.
_OUT_OF_MEMORY = (
    "Cannot allocate memory",
    "bad_alloc",
    "bad allocation",
    "cannot map zero-fill pages",
    "failed to map segment",
)


@contextlib.contextmanager
def failures() -> Iterator[None]:
    """Turn every error of compiling into one of those that ``compile_file`` raises."""
    from models.errors import ModelError

    try:
        yield
    except Exception as exc:
        if isinstance(exc, MemoryError) or _is_short(exc):
            raise MemoryError("compiling it takes more memory than it may") from exc
        text = str(exc)
        if isinstance(exc, OSError):
            text = exc.strerror or text
        elif not isinstance(exc, ModelError):
            text = f"{type(exc).__name__}: {exc}"
        if _has(exc, errno.ENOSPC, errno.EDQUOT):
            raise SpoolError(text) from exc
        if _has(exc, errno.EFBIG):
            raise TooLargeError(f"{text}: a file of it exceeds the setting compile_memory") from exc
        kind = InvalidRequestError if isinstance(exc, ModelError) else ServiceError
        raise kind(text) from exc


def _is_short(exc: BaseException) -> bool:
    """Return whether memory was lacking, which libraries report by message alone."""
    return any(words in str(exc) for words in _OUT_OF_MEMORY)


def _has(exc: BaseException | None, *codes: int) -> bool:
    """Return whether an error of the system with one of ``codes`` is among the causes of ``exc``."""
    while exc is not None:
        if isinstance(exc, OSError) and exc.errno in codes:
            return True
        exc = exc.__cause__
    return False
