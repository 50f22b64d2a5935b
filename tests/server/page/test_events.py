"""Events: each state once, an end for all, never too many."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from typing import Any

import orjson
import pytest

from server.errors import BusyError
from server.page.state import MOST_WATCHERS, Watchers
from tests.server.support import LIMIT_SECONDS, Connection, Service

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Looks:
    """Returns ``states`` one after the other, the last one for ever; counts the looks."""

    def __init__(self, *states: Any) -> None:
        self._states = list(states)
        self.count = 0

    async def __call__(self) -> Any:
        self.count += 1
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]


async def read(said: AsyncGenerator[bytes], count: int) -> list[bytes]:
    return [await anext(said) for _ in range(count)]


def states(parts: list[bytes]) -> list[Any]:
    prefix = b"event: state\ndata: "
    assert all(part.startswith(prefix) and part.endswith(b"\n\n") for part in parts)
    return [orjson.loads(part.removeprefix(prefix)) for part in parts]


def watchers(
    *states: Any, ended: asyncio.Event | None = None, clock: Callable[[], float] = time.monotonic
) -> Watchers:
    """Watchers that wait for nothing between looks."""
    return Watchers(Looks(*states), ended or asyncio.Event(), 0.0, clock)


async def test_a_state_is_sent_when_it_is_new() -> None:
    async with watchers({"a": 1}, {"a": 1}, {"a": "\n\n"}, {"a": 1}).watching() as said:
        assert states(await read(said, 3)) == [{"a": 1}, {"a": "\n\n"}, {"a": 1}]
        assert await anext(said) == b":\n\n"  # nothing is new, but a client that left is found


async def test_one_look_is_for_all_who_watch() -> None:
    look, now = Looks({"a": 1}, {"a": 2}), [0.0]
    several = Watchers(look, asyncio.Event(), 1.0, lambda: now[0])
    async with AsyncExitStack() as stack:
        said = [await stack.enter_async_context(several.watching()) for _ in range(3)]
        assert states(await asyncio.gather(*map(anext, said))) == 3 * [{"a": 1}]
        async with several.watching() as late:
            assert states(await read(late, 1)) == [{"a": 1}]
        assert look.count == 1
        now[0] = 1.0
        async with several.watching() as later:
            assert states(await read(later, 1)) == [{"a": 2}]
        assert look.count == 2


async def test_who_leaves_takes_the_look_from_no_other() -> None:
    going, looked = asyncio.Event(), asyncio.Event()

    async def look() -> int:
        looked.set()
        await going.wait()
        return 1

    several = Watchers(look, asyncio.Event())
    async with several.watching() as first, several.watching() as second:
        leaving, staying = (asyncio.create_task(anext(said)) for said in (first, second))
        await looked.wait()
        leaving.cancel()
        await asyncio.wait({leaving})
        going.set()
        assert states([await staying]) == [1]


async def test_the_end_of_the_server_ends_all() -> None:
    ended = asyncio.Event()
    async with watchers({}, ended=ended).watching() as said:
        await anext(said)
        ended.set()
        assert [part async for part in said] == []


async def test_who_leaves_makes_room() -> None:
    several = watchers({})
    async with AsyncExitStack() as stack:
        for _ in range(MOST_WATCHERS):
            await stack.enter_async_context(several.watching())
        with pytest.raises(BusyError, match=f"{MOST_WATCHERS} pages"):
            await stack.enter_async_context(several.watching())
    async with several.watching() as said:
        await anext(said)


async def test_a_page_that_is_closed_leaves_no_trace(shared: Service) -> None:
    """Nothing is said of it in the log, and the next one finds its place."""
    for _ in range(MOST_WATCHERS + 1):
        page = Connection("/page/events", b"", ("host", "127.0.0.1"), method="GET")
        running = asyncio.create_task(page.call(shared.asgi))
        async with asyncio.timeout(LIMIT_SECONDS):
            await page.answered.wait()
            page.go_away()
            await running
        assert page.status == 200
        assert page.answer.startswith(b"event: state\ndata: {")
