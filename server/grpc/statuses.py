"""The status of each error over gRPC, by its status over HTTP: one table of errors serves both."""

import grpc

from server.errors import ServiceError
from server.protocol.errors import status_of

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.RESOURCE_EXHAUSTED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
# What clients that try again by themselves wait for (gRFC A6).
_WAIT = "grpc-retry-pushback-ms"


def code_of(exc: Exception) -> grpc.StatusCode:
    """Return the status of a call that ended with ``exc``."""
    return _CODES.get(status_of(exc), grpc.StatusCode.INTERNAL)


def hints_of(exc: Exception) -> tuple[tuple[str, str], ...]:
    """Return what is said beside the status: when to try again."""
    if isinstance(exc, ServiceError) and exc.retry_seconds is not None:
        return ((_WAIT, str(round(exc.retry_seconds * 1e3))),)
    return ()
