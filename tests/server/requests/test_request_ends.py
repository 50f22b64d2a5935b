"""What is left of a request when it has ended: nothing, and no part has to search for it."""

import asyncio
import gc
import threading
import weakref

import pytest
from server.requests.uninterrupted import to_its_end

from server.protocol.routing import Asked
from server.requests.exchange import Exchange
from tests.server.support import LIMIT_SECONDS, Connection, Service


async def test_a_request_is_freed_without_the_garbage_collector(service: Service) -> None:
    seen: list[weakref.ref[Exchange | Asked]] = []
    exchanges = service.context.exchanges
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


# What must not be left half done is waited for, however often the waiting task is cancelled.


async def test_work_that_is_cancelled_is_waited_for() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go_on.wait(LIMIT_SECONDS)

    task = asyncio.create_task(to_its_end(asyncio.to_thread(work)))
    assert await asyncio.to_thread(begun.wait, LIMIT_SECONDS)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
