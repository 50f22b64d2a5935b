"""Errors that end one request or one model, and nothing else: code that goes on with others catches them.

Models, loader and pipeline know nothing of each other's errors, so there is no class above all of them.
"""

import errno
import re
from collections.abc import Iterator
from pathlib import Path

from loader.errors import ChecksumError, LoaderError
from models.errors import ModelError
from pipeline.devices.base import DeviceError
from pipeline.execution.errors import EngineError
from pipeline.planning.plan import PlanError
from server.errors import NotFoundError, NotServingError, ServiceError

#: Errors of files, of the disk or the device, of memory, and of the service itself. Each has an HTTP status
#: (protocol/errors.py).
FAILURES = (ServiceError, ModelError, LoaderError, PlanError, DeviceError, EngineError, OSError)
# A disk may recover, and other programs may free memory.
_MAY_PASS = (LoaderError, NotServingError)
# A disk that is full or fails, a limit on open files.
_SHORTAGES = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE}


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
    of_system = any(isinstance(error, OSError | MemoryError) for error in _causes(exc))
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
    if isinstance(failure, OSError):
        return failure.strerror or type(failure).__name__
    text = str(failure)
    if root is None or ("/" not in text and str(root) not in text):
        return text
    for path in {str(root.absolute()), str(root)} - {"/", "."}:
        text = re.sub(rf"(?<![\w./-]){re.escape(path)}/", "", text)
        # A bare word such as "repository" may be part of a sentence; it is the path only at the beginning
        # or after a colon, and only where a colon follows.
        before, after = ("(^| )", r"(?![\w./-])") if "/" in path else ("(^|(?<=: ))", "(?=:)")
        text = re.sub(rf"{before}{re.escape(path)}{after}", "", text)
    return text
