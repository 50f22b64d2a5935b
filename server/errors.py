"""Errors for which a request or a model is turned away. Each has one code (faults.py)."""

import errno
import resource
from collections.abc import Sequence


class ServiceError(Exception):
    """The base of the errors of the service.

    ``retry_seconds``: after so long the same request may succeed; None: waiting alone does not help.
    """

    retry_seconds: float | None = None


class NotFoundError(ServiceError):
    """No such model, version or output."""


class NotLoadedError(NotFoundError):
    """The model was unloaded by request, or never loaded: until it is loaded, requests do not find it."""


class InvalidRequestError(ServiceError):
    """The request is not what the protocol or the model asks for; the message names the field."""


class ForbiddenError(ServiceError):
    """This client may not change what is served; the message says from where it can be done."""


_REALM = 'Bearer realm="layerstream"'


class UnknownKeyError(ServiceError):
    """No key was presented, or (``given``) one that is not valid; ``in_form``: a form may hold it."""

    def __init__(self, given: bool, in_form: bool = False) -> None:
        wanted = "a key is wanted: Authorization: Bearer KEY"
        also = ", or the field api_key of the form, before the image" if in_form else ""
        super().__init__("this key is not valid" if given else wanted + also)
        #: The value of the header WWW-Authenticate.
        self.challenge = f'{_REALM}, error="invalid_token"' if given else _REALM


class TooLargeError(ServiceError):
    """The body is over the limit."""


class EncodedError(ServiceError):
    """The body is compressed in a way that is not read; ``taken``: the codings that are."""

    def __init__(self, message: str, taken: Sequence[str] = ("identity",)) -> None:
        super().__init__(message)
        self.taken = tuple(taken)


class UnsupportedError(ServiceError):
    """A part of the protocol that this server does not have; the message names it."""


class SpoolError(ServiceError):
    """The repository takes no more: its disk is full, or cannot be written."""


class ConflictError(ServiceError):
    """Another request is changing what this one would change."""


class NotServingError(ServiceError):
    """The model is to be served, but is loading, could not be loaded, or is leaving service."""


class AwayError(NotServingError):
    """The repository itself is not there, maybe for a moment: what is in it is not known."""


class FilesChangedError(NotServingError):
    """The files of a model have changed since it was loaded, so it cannot be opened again."""

    def __init__(self, model: str) -> None:
        super().__init__(f"model {model!r}: its files are others by now; load it")


class LoadingError(NotServingError):
    """The model is being planned or read."""

    retry_seconds = 1.0


class BusyError(ServiceError):
    """There is no place or no time for the request now."""

    retry_seconds: float

    def __init__(self, message: str, retry_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds


class LateError(BusyError):
    """The answer would come too late, or would make the answer to another request late."""


class DisconnectedError(ServiceError):
    """The client went away."""


class StalledError(ServiceError):
    """The client made no progress while others waited, or for too long."""


def system_hint(exc: BaseException | None) -> str:
    """Return what to do about ``exc``, where it comes of a limit of the system's; else nothing.

    It follows the message of the error, whose words for that are the system's.
    """
    while exc is not None:
        code = exc.errno if isinstance(exc, OSError) else None
        if code == errno.EMFILE:
            allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            return f"; this process may have {allowed} open (LimitNOFILE in a unit, ulimit -n)"
        if code == errno.ENFILE:
            return "; so many has the whole system (sysctl fs.file-max)"
        exc = exc.__cause__
    return ""


_SHOWN_CHARACTERS = 60


def shown(text: str) -> str:
    """Return what a client wrote as errors show it: quoted, on one line, of bounded length.

    Characters beyond ASCII are written as their numbers, since some of them look like ASCII letters.
    """
    return ascii(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")


_NAMED = 5


def few(texts: Sequence[str], separator: str = ", ") -> str:
    """Return the first few of ``texts``, and how many there are more."""
    more = len(texts) - _NAMED
    return separator.join(texts[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")
