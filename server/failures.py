"""What one request or one model ends with, and nothing else: whoever goes on with the others catches it.

Models, loader and pipeline know nothing of each other's errors, so there is no class above all of them.
"""

import re
from pathlib import Path

from loader.errors import LoaderError
from models.errors import ModelError
from pipeline.devices.base import DeviceError
from pipeline.execution.errors import EngineError
from pipeline.planning.plan import PlanError
from server.errors import NotServingError, ServiceError

#: Of files, the disk or the device under them, of memory, or what the service says. Each has a status
#: (protocol/errors.py).
FAILURES = (ServiceError, ModelError, LoaderError, PlanError, DeviceError, EngineError, OSError)
# Of the disk and of the system's memory.
_MAY_PASS = (LoaderError, NotServingError)


def may_pass(exc: BaseException) -> bool:
    """Return whether the next try may succeed, without anybody changing a file or a setting."""
    return isinstance(exc, _MAY_PASS)


def reason_of(failure: BaseException | str, root: Path | None = None) -> str:
    """Return what is said of a failure; of the system's, what that says, without paths.

    ``root``: the path of the repository, which is no client's business: to one what is in it keeps its path
    from there, model, version, file.
    """
    if isinstance(failure, OSError):
        return failure.strerror or type(failure).__name__
    text = str(failure)
    if root is None or ("/" not in text and str(root) not in text):
        return text
    for path in {str(root.absolute()), str(root)} - {"/", "."}:
        text = re.sub(rf"(?<![\w./-]){re.escape(path)}/", "", text)
        # A bare word such as "repository" is also one of sentences: a path is it only where one begins.
        before, after = ("(^| )", r"(?![\w./-])") if "/" in path else ("(^|(?<=: ))", "(?=:)")
        text = re.sub(rf"{before}{re.escape(path)}{after}", "", text)
    return text
