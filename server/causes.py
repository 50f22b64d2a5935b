"""Who requested a change of what is served, and for what reason: its log line names both.

Each request is the requester of what is done for it; whatever else loads or closes models has none, and is
the work of the server. Tasks and threads that work for a change know them from what started them.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

#: The key or the address of the request for which something is done; without one it is the server's work.
#: A name, and not the request: work that goes on after its end would keep all of it.
requester: ContextVar[str] = ContextVar("requester", default="server")
_reason: ContextVar[str] = ContextVar("reason", default="")


def attribution(reason: str = "") -> dict[str, str]:
    """Return what a line of the log has as ``extra``; ``reason``: empty: the one that is known here."""
    reason = reason or _reason.get()
    return {"by": requester.get(), **({"reason": reason} if reason else {})}


@contextlib.contextmanager
def because(reason: str, *, by_server: bool = False) -> Iterator[None]:
    """Give changes inside this reason; ``by_server``: no request is their requester."""
    token = _reason.set(reason)
    before = requester.set("server" if by_server else requester.get())
    try:
        yield
    finally:
        requester.reset(before)
        _reason.reset(token)
