"""What a request or a load of a model ends with: a fault, whose code decides all that is reported of it.

Invariant: ``Code`` is the only table. Statuses of HTTP and gRPC, the outcome that is counted, its reason in
Triton's metric, the level in the log and docs/reference/errors.md follow from the code of an error.

Models, loader and pipeline know nothing of each other's errors, so there is no class above all of them.
``python -m server.faults`` prints the table as Markdown.
"""

import errno
import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Self

from loader.errors import ChecksumError, LoaderError
from models.errors import ModelError
from pipeline.budget.errors import RefusedError
from pipeline.devices.base import DeviceError
from pipeline.execution.errors import CancelledError, DeadlineError, EngineError, InputError
from pipeline.planning.plan import InvalidPlanError, PlanError
from server.errors import (
    BusyError,
    ConflictError,
    DisconnectedError,
    EncodedError,
    ForbiddenError,
    InvalidRequestError,
    LateError,
    LoadingError,
    NotFoundError,
    NotLoadedError,
    NotServingError,
    ServiceError,
    SpoolError,
    StalledError,
    TooLargeError,
    UnknownKeyError,
    UnsupportedError,
    system_hint,
)

#: Texts of libraries may be longer; quotes of what clients wrote are cut by ``shown`` already.
LONGEST_MESSAGE = 600


class Outcome(StrEnum):
    """How a request ended, as it is counted, and ``reason``: why it failed, in Triton's words.

    ``reason`` is empty of a request that was answered.
    """

    OK = "ok", ""
    INVALID = "invalid", "OTHER"
    BUSY = "busy", "REJECTED"
    LATE = "late", "REJECTED"
    DEADLINE = "deadline", "OTHER"
    CANCELLED = "cancelled", "CANCELED"
    FAILED = "failed", "BACKEND"
    INTERNAL = "internal", "BACKEND"

    reason: str

    def __new__(cls, label: str, reason: str) -> Self:
        """Return the outcome that ``label`` names; one without a reason cannot be written."""
        outcome = str.__new__(cls, label)
        outcome._value_, outcome.reason = label, reason
        return outcome


#: Why requests fail.
REASONS = tuple(dict.fromkeys(outcome.reason for outcome in Outcome if outcome.reason))

_WARNING, _ERROR = logging.WARNING, logging.ERROR


class Code(StrEnum):
    """What went wrong, in a word for programs.

    A row: the word, the status of HTTP, the name of gRPC's status, the outcome, the level of its line in
    the log (None: it has none but that of the request), what it means, and the classes of errors that have
    it. The code of an error is that of its most derived class here; INTERNAL where it has none.
    """

    # fmt: off
    INVALID_REQUEST = (
        "invalid_request", 400, "INVALID_ARGUMENT", Outcome.INVALID, None,
        "the request is wrong; the message names the field",
        InvalidRequestError, InputError,
    )
    UNAUTHENTICATED = (
        "unauthenticated", 401, "UNAUTHENTICATED", Outcome.INVALID, None,
        "no key, or a wrong one, where [keys](../how-to/access.md#keys) are required",
        UnknownKeyError,
    )
    FORBIDDEN = (
        "forbidden", 403, "PERMISSION_DENIED", Outcome.INVALID, None,
        "this client may not load and unload ([who may](../how-to/access.md#who-may-load-and-unload)); "
        "without keys: a request under another [name](limits.md#names)",
        ForbiddenError,
    )
    MISSING = (
        "not_found", 404, "NOT_FOUND", Outcome.INVALID, None,
        "no such model, version, output or path",
        NotFoundError,
    )
    NOT_LOADED = (
        "not_loaded", 404, "NOT_FOUND", Outcome.INVALID, None,
        "the model was unloaded by request, or never loaded; the message says how to load it",
        NotLoadedError,
    )
    METHOD_NOT_ALLOWED = (
        "method_not_allowed", 405, "UNIMPLEMENTED", Outcome.INVALID, None,
        "another method; `Allow` lists all that the path has",
    )
    STALLED = (
        "stalled", 408, "DEADLINE_EXCEEDED", Outcome.CANCELLED, None,
        "a body or header that did not come on",
        StalledError,
    )
    CONFLICT = (
        "conflict", 409, "ABORTED", Outcome.FAILED, None,
        "another upload is under way, or the state of the model does not allow the change",
        ConflictError,
    )
    OVER_BUDGET = (
        "over_budget", 409, "RESOURCE_EXHAUSTED", Outcome.FAILED, None,
        "the model does not fit in the budget: the message has what it needs and what is free",
        RefusedError,
    )
    TOO_LARGE = (
        "too_large", 413, "RESOURCE_EXHAUSTED", Outcome.INVALID, None,
        "a body over the limit",
        TooLargeError,
    )
    UNSUPPORTED_ENCODING = (
        "unsupported_encoding", 415, "UNIMPLEMENTED", Outcome.INVALID, None,
        "a body in a coding that is not read (of an image: in any)",
        EncodedError,
    )
    HEADERS_TOO_LARGE = (
        "headers_too_large", 431, "RESOURCE_EXHAUSTED", Outcome.INVALID, None,
        "a header over the limit",
    )
    DISCONNECTED = (
        "disconnected", 499, "CANCELLED", Outcome.CANCELLED, None,
        "the client left: the log and metrics have it",
        DisconnectedError, CancelledError,
    )
    INTERNAL = (
        "internal", 500, "INTERNAL", Outcome.INTERNAL, _ERROR,
        "a fault of the program; the log has its traceback",
        InvalidPlanError,
    )
    FAILED = (
        "failed", 500, "INTERNAL", Outcome.FAILED, _WARNING,
        "something that the server needs failed; its log says more",
        ServiceError,
    )
    PLAN_FAILED = (
        "plan_failed", 500, "INTERNAL", Outcome.FAILED, _WARNING,
        "the model has no plan as the settings want it, or the search for it ended early",
        PlanError,
    )
    DEVICE_FAILED = (
        "device_failed", 500, "INTERNAL", Outcome.FAILED, _WARNING,
        "the processor or GPU cannot load or run the model",
        DeviceError,
    )
    UNSUPPORTED = (
        "unsupported", 501, "UNIMPLEMENTED", Outcome.FAILED, None,
        "a part of Triton's protocol that this server does not have, or a method that HTTP does not have",
        UnsupportedError,
    )
    BUSY = (
        "busy", 503, "UNAVAILABLE", Outcome.BUSY, None,
        "a full queue, or no memory for the request within `request_timeout`",
        BusyError,
    )
    LATE = (
        "late", 503, "UNAVAILABLE", Outcome.LATE, None,
        "the answer would not come in time, so the request was not let in",
        LateError,
    )
    LOADING = (
        "loading", 503, "UNAVAILABLE", Outcome.FAILED, None,
        "the model is being loaded",
        LoadingError,
    )
    NOT_SERVING = (
        "not_serving", 503, "UNAVAILABLE", Outcome.FAILED, None,
        "the model could not be loaded or left service, or the repository or server is away",
        NotServingError,
    )
    MODEL_INVALID = (
        "model_invalid", 503, "UNAVAILABLE", Outcome.FAILED, _WARNING,
        "the pack or configuration of the model is wrong",
        ModelError,
    )
    READ_FAILED = (
        "read_failed", 503, "UNAVAILABLE", Outcome.FAILED, _WARNING,
        "weights could not be read",
        LoaderError,
    )
    ENGINE_FAILED = (
        "engine_failed", 503, "UNAVAILABLE", Outcome.FAILED, _WARNING,
        "the model was closed, or lost its memory, while it computed",
        EngineError,
    )
    STORAGE_FAILED = (
        "storage_failed", 503, "UNAVAILABLE", Outcome.FAILED, _WARNING,
        "the disk of the repository is full, or cannot be written",
        SpoolError,
    )
    SYSTEM_FAILED = (
        "system_failed", 503, "UNAVAILABLE", Outcome.FAILED, _WARNING,
        "the system is short of open files or disk, or a disk fails",
        OSError,
    )
    OUT_OF_MEMORY = (
        "out_of_memory", 503, "RESOURCE_EXHAUSTED", Outcome.FAILED, _WARNING,
        "the system has no memory for it",
        MemoryError,
    )
    DEADLINE = (
        "deadline_exceeded", 504, "DEADLINE_EXCEEDED", Outcome.DEADLINE, None,
        "a missed deadline of a request that was let in; a body not here within the server's own "
        "`request_timeout`; a model not loaded again in time",
        DeadlineError,
    )
    # fmt: on

    status: int
    grpc: str
    outcome: Outcome
    level: int | None
    meaning: str
    kinds: tuple[type[Exception], ...]

    def __new__(
        cls,
        word: str,
        status: int,
        grpc: str,
        outcome: Outcome,
        level: int | None,
        meaning: str,
        *kinds: type[Exception],
    ) -> Self:
        """Return the row; one that lacks a field cannot be written."""
        code = str.__new__(cls, word)
        code._value_, code.status, code.grpc, code.outcome = word, status, grpc, outcome
        code.level, code.meaning, code.kinds = level, meaning, kinds
        return code


_CODES = {kind: code for code in Code for kind in code.kinds}
#: Errors that end one request or one model, and nothing else: code that goes on with others catches them.
FAILURES = tuple(kind for kind in _CODES if not any(base in _CODES for base in kind.__mro__[1:]))

# Classes that say nothing closer than their cause does.
_WRAPPERS = (ServiceError, PlanError)
# A disk that is full or fails, a limit on open files.
_SHORTAGES = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE}
# Whatever else the system says where no code expects it is a fault of that code.
_OF_SYSTEM = _SHORTAGES | {
    errno.ENOMEM, errno.EROFS, errno.ENODEV, errno.ENXIO, errno.ESTALE,
    errno.ESHUTDOWN, errno.ENOTCONN, errno.EREMOTEIO, errno.EHOSTDOWN,
}  # fmt: skip
# A disk may recover, and other programs may free memory.
_OF_SYSTEMS = (OSError, MemoryError)
_MAY_PASS = (LoaderError, NotServingError)
_INTERNAL = "internal error; the log has the details"


@dataclass(frozen=True)
class Fault:
    """Why a request or a model failed.

    ``permanent``: the same try fails again unless something is changed; None: that follows from its cause
    once it is a state that lasts. ``cause``: the error, as long as somebody may need its traceback; it
    refers to all that was in memory.
    """

    code: Code
    message: str
    permanent: bool | None = None
    cause: BaseException | None = None

    @classmethod
    def of(cls, exc: BaseException, root: Path | None = None) -> Self:
        """Return the fault that ``exc`` is; ``root``: as ``reason_of``."""
        code = code_of(exc)
        message = reason_of(exc, root) if _has_message(exc, code) else _INTERNAL
        return cls(code, message[:LONGEST_MESSAGE], cause=exc)

    @property
    def settled(self) -> Self:
        """The same without the error, for a state that lasts."""
        permanent = self.permanent
        if permanent is None:
            permanent = self.cause is None or not may_come_back(self.cause)
        return replace(self, permanent=permanent, cause=None)

    @property
    def retry_seconds(self) -> float | None:
        """After so long the same request may succeed; None: waiting alone does not help."""
        return self.cause.retry_seconds if isinstance(self.cause, ServiceError) else None

    @property
    def document(self) -> dict[str, str]:
        """The fields of an answer."""
        return {"error": self.message, "code": self.code}

    def __str__(self) -> str:
        return self.message


def code_of(exc: BaseException) -> Code:
    """Return the code of ``exc``; of one that passes on its cause, a fault of the program, INTERNAL."""
    if not isinstance(exc, Exception):  # a task was cancelled
        return Code.DISCONNECTED
    if isinstance(exc, OSError) and exc.errno not in _OF_SYSTEM:
        return Code.INTERNAL
    cause = exc
    while type(cause) in _WRAPPERS and isinstance(cause.__cause__, Exception):
        cause = cause.__cause__
    if not isinstance(cause, FAILURES):
        return Code.INTERNAL
    return next((_CODES[kind] for kind in type(exc).__mro__ if kind in _CODES), Code.INTERNAL)


def outcome_of(exc: BaseException | None) -> Outcome:
    """Return the outcome of a request that ended with ``exc``; None: it was answered."""
    return Outcome.OK if exc is None else code_of(exc).outcome


def traceable(exc: BaseException) -> BaseException | None:
    """Return ``exc`` if it is a fault of the program, whose traceback is worth a log; else None."""
    return exc if code_of(exc) is Code.INTERNAL else None


def _has_message(exc: BaseException, code: Code) -> bool:
    """Return whether the text of ``exc`` is one for clients."""
    return code is not Code.INTERNAL or isinstance(exc, ServiceError | PlanError)


def may_pass(exc: BaseException) -> bool:
    """Return whether the next try may succeed although no file and no setting was changed.

    Some errors say so of themselves; others come of a system that was short of something.
    """
    cause = exc.__cause__
    is_shortage = isinstance(cause, OSError) and cause.errno in _SHORTAGES
    return isinstance(exc, _MAY_PASS) or is_shortage or getattr(exc, "may_pass", False)


def may_come_back(exc: BaseException) -> bool:
    """Return whether a model that is to be served may be loaded later, after loading it ended with ``exc``.

    Whatever the system says may pass, also that a file is not there, or cannot be read: so it is
    with folders while a file system is mounted again, a disk is plugged in, or a server restarts. What was
    read does not: a manifest that is wrong, bytes that are not those of the manifest.
    """
    of_system = any(isinstance(error, _OF_SYSTEMS) for error in _causes(exc))
    may = of_system or isinstance(exc, NotFoundError) or may_pass(exc)
    return may and not isinstance(exc, ChecksumError)


def _causes(exc: BaseException | None) -> Iterator[BaseException]:
    """Yield ``exc``, its cause, the cause of that, and so on."""
    while exc is not None:
        yield exc
        exc = exc.__cause__


def reason_of(failure: BaseException | str, root: Path | None = None) -> str:
    """Return the message for a failure; for an error of the system, its text without paths.

    ``root``: the path of the repository. A client does not need to know it, so it is taken out of paths in
    the message: model, version and file remain.
    """
    advice = system_hint(failure) if isinstance(failure, BaseException) else ""
    if isinstance(failure, OSError):
        return (failure.strerror or type(failure).__name__) + advice
    text = f"{failure}{advice}"
    if root is None or ("/" not in text and str(root) not in text):
        return text
    for path in {str(root.absolute()), str(root)} - {"/", "."}:
        text = re.sub(rf"(?<![\w./-]){re.escape(path)}/", "", text)
        # A bare word such as "repository" may be part of a sentence; it is the path only at the beginning
        # or after a colon, and only where a colon follows.
        before, after = ("(^| )", r"(?![\w./-])") if "/" in path else ("(^|(?<=: ))", "(?=:)")
        text = re.sub(rf"{before}{re.escape(path)}{after}", "", text)
    return text


def table() -> str:
    """Return the codes as a table in Markdown."""
    head = "| code | HTTP | gRPC | outcome | log | |\n|---|---|---|---|---|---|\n"
    return head + "".join(map(_row, Code))


def _row(code: Code) -> str:
    level = "" if code.level is None else logging.getLevelName(code.level).lower()
    return f"| `{code}` | {code.status} | `{code.grpc}` | `{code.outcome}` | {level} | {code.meaning} |\n"


if __name__ == "__main__":
    sys.stdout.write(table())
