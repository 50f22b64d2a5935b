"""What must not be left half done is waited for, however often the waiting task is cancelled."""

import asyncio
import threading

import pytest

from server.requests.uninterrupted import to_its_end
from tests.server.support import LIMIT_SECONDS


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
