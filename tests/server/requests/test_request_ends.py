"""What is left of a request when it has ended: nothing, and nobody has to search for it."""

import gc
import weakref
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from server.memory.request_memory import RequestMemory
from server.middleware import RequestMiddleware
from server.requests.exchange import Exchange
from server.requests.exchanges import Exchanges


class Cycle:
    """As the server's: it has the scope, and gives its methods away."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    async def receive(self) -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(self, message: Message) -> None:
        pass


async def test_a_request_is_freed_without_the_garbage_collector() -> None:
    seen: list[weakref.ref[Exchange]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(weakref.ref(scope["exchange"]))
        await receive()
        start: dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}
        await send(start)
        await send({"type": "http.response.body", "body": b""})

    middleware = RequestMiddleware(app, Exchanges(RequestMemory(1 << 20), 1 << 20, 1.0), False)
    gc.disable()
    try:
        cycle = Cycle({"type": "http", "method": "GET", "path": "/", "headers": []})
        await middleware(cycle.scope, cycle.receive, cycle.send)
        ended = weakref.ref(cycle)
        del cycle
        assert [exchange() for exchange in seen] == [None]
        assert ended() is None
    finally:
        gc.enable()
