"""Tests speak ASGI: their clients to the service, their applications to connections."""

from collections.abc import Callable, Coroutine
from typing import Any

from starlette.types import Receive, Scope, Send

from server.requests.asgi_client import UnextendedRequest
from server.transport.extension import EXTENSION

Asgi = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]


class Extended(UnextendedRequest):
    """A request of which a server knows more; times are on time.monotonic's clock."""

    arrived_at: float | None
    answerable_at: float | None

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        *,
        arrived_at: float | None = None,
        answerable_at: float | None = None,
        abort: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(scope, receive)
        self.arrived_at, self.answerable_at = arrived_at, answerable_at
        self._abort = abort

    def abort(self) -> None:
        """Do as the test does, or as without an extension."""
        if self._abort is None:
            super().abort()
        else:
            self._abort()


def extended(scope: Scope, receive: Receive, **fields: Any) -> Scope:
    """Return ``scope`` with our extension, which has these ``fields``."""
    return {**scope, "extensions": {EXTENSION: Extended(scope, receive, **fields)}}
