"""What our server knows of a request beyond ASGI: an extension of its scope.

Under other servers a scope has none, and everything works without it (``server/requests/asgi_client.py``).
"""

from collections.abc import Callable
from typing import Any, Protocol

#: Its name in ``scope["extensions"]``.
EXTENSION = "layerstream"


class RequestExtension(Protocol):
    """A request as its server sees it; times are on time.monotonic's clock, in seconds."""

    #: Whether more than one read of the body may lie unread in the server, since memory is held for it.
    reads_ahead: bool

    @property
    def owner(self) -> str:
        """The address as limits count it; empty where it is unknown."""

    @property
    def arrived_at(self) -> float | None:
        """When its first byte came; None: unknown."""

    @property
    def answerable_at(self) -> float | None:
        """When it could be answered at the earliest; None: unknown."""

    @property
    def expected(self) -> Any:
        """What the gate keeps for it until it joins the requests of its model."""

    @property
    def is_complete(self) -> bool:
        """Whether all of its body has come to the server."""

    @property
    def is_gone(self) -> bool:
        """Whether its client does not wait for the answer any more."""

    @property
    def refusal(self) -> str:
        """Why its body is none, as the client was answered; empty: nobody has answered it."""

    def on_leave(self, leaves: Callable[[], None] | None) -> None:
        """Have ``leaves`` called when the client leaves, or at once if it has; None: nothing any more."""

    def abort(self) -> None:
        """Cut the client off."""
