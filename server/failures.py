"""What keeps one model from being served, and nothing else; whoever goes on with the others catches it."""

from loader.errors import LoaderError
from models.errors import ModelError
from pipeline.devices.base import DeviceError
from pipeline.execution.errors import EngineError
from pipeline.planning.plan import PlanError
from server.errors import NotServingError, ServiceError

#: Its files, the disk or the device under them, too little memory for it, or what the service says of it.
FAILURES = (ServiceError, ModelError, LoaderError, PlanError, DeviceError, EngineError, OSError)
# Of the disk and of the system's memory.
_MAY_PASS = (LoaderError, NotServingError)


def may_pass(exc: BaseException) -> bool:
    """Return whether the next try may succeed, without anybody changing a file or a setting."""
    return isinstance(exc, _MAY_PASS)


def said(exc: BaseException) -> str:
    """Return what is said of a failure; of the system's, what that says, without paths."""
    why = exc.strerror if isinstance(exc, OSError) else None
    return why or str(exc)
