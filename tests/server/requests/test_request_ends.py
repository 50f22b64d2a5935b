"""What is left of a request when it has ended: nothing, and no part has to search for it."""

import gc
import weakref

from server.protocol.http_request import HttpRequest
from server.requests.exchange import Exchange
from tests.server.support import Connection, ServiceUnderTest


async def test_a_request_is_freed_without_the_garbage_collector(service: ServiceUnderTest) -> None:
    seen: list[weakref.ref[Exchange | HttpRequest]] = []
    exchanges = service.inside.exchanges
    real = exchanges.exchange

    def noting(*how: object) -> Exchange:
        made = real(*how)  # type: ignore[arg-type]
        seen.append(weakref.ref(made))
        return made

    exchanges.exchange = noting  # type: ignore[method-assign,assignment]
    gc.disable()
    try:
        for path in ("/v2/health/live", "/v2/models/nobody"):
            await Connection(path, b"", method="GET").call(service.asgi)
        assert len(seen) >= 2
        assert [each() for each in seen] == [None] * len(seen)
    finally:
        gc.enable()
