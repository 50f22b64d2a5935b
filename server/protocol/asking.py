"""What asks, over whichever way: all that most handlers know of it."""

from typing import Protocol

from server.context import Context


class Asking(Protocol):
    """A request over HTTP, or a call over gRPC."""

    @property
    def context(self) -> Context:
        """The server that is asked."""
