"""What can be wrong with a model on disk. Messages are one line and name the file and the field."""

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # completion of a command shows texts, and waits for no library
    from pydantic import ValidationError


def printable(text: str) -> str:
    r"""Return ``text`` in one line that does nothing to a terminal: "\x1b" instead of an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class ModelError(Exception):
    """A model, or a file that belongs to it, cannot be used; the base of all errors of models/.

    Messages quote untrusted files: what is not printable in them is escaped.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class OnnxError(ModelError):
    """The source is not an ONNX model that can be compiled."""


class CompileError(ModelError):
    """The source is sound but compiling it failed, or its result could not be written."""


class PackError(ModelError):
    """A pack on disk is not what its manifest or the format says."""


def absent(path: Path) -> FileNotFoundError:
    """Return the system's error of ``path``, where nothing is: the cause of an error that says so.

    Code that loads packs which were there decides by it what may come back.
    """
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


# Pydantic's messages for dataclasses, by the type of error, in the words that it has for models.
_REASONS = {
    "unexpected_keyword_argument": "Extra inputs are not permitted",
    "dataclass_type": "Input should be an object",
}


def first_fault(exc: "ValidationError") -> str:
    """Return field and reason of the first thing wrong with a record."""
    first = exc.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    reason = _REASONS.get(first["type"], str(first["msg"]).removeprefix("Value error, "))
    return f"{field}: {reason}" if field else reason
