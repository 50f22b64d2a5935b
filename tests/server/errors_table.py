"""An error of each class of the table of codes, and errors that are faults of the program."""

import errno
from typing import Any

from pipeline.execution.errors import DrainError
from pipeline.planning.plan import InvalidPlanError, PlanError
from server.errors import ServiceError
from server.faults import Code

LACK = OSError(errno.EMFILE, "Too many open files")


def caused(exc: Exception, cause: BaseException) -> Exception:
    exc.__cause__ = cause
    return exc


def raised(kind: Any) -> Exception:
    """Return an error of the class ``kind``."""
    return LACK if kind is OSError else kind("why")


#: Each class of the table; derived classes have the code of their nearest one.
ERRORS = [
    *((code, raised(kind)) for code in Code for kind in code.kinds),
    (Code.ENGINE_FAILED, DrainError("why")),
    (Code.PLAN_FAILED, caused(PlanError("why"), ChildProcessError("status -9"))),
    (Code.FAILED, caused(ServiceError("why"), LACK)),
]
#: What no code expects is a fault of the program.
SLIPS = [
    KeyError("why"),
    TimeoutError(),
    FileNotFoundError(errno.ENOENT, "No such file or directory"),
    OSError(errno.EBADF, "Bad file descriptor"),
    InvalidPlanError("why"),
    caused(PlanError("why"), ValueError("no message")),
    caused(ServiceError("why"), KeyError("why")),
]
