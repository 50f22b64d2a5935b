"""Events: each state once, an end for all, never too many."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import orjson
import pytest

from server.errors import BusyError
from server.page.state import MOST_WATCHERS, Watchers
from tests.server.support import LIMIT_SECONDS, Connection, ServiceUnderTest

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Looks:
    """Returns ``states`` one after the other, the last one for ever."""

    def __init__(self, *states: Any) -> None:
        self._states = list(states)

    async def __call__(self) -> Any:
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]


async def read(said: AsyncGenerator[bytes], count: int) -> list[bytes]:
    return [await anext(said) for _ in range(count)]


def states(parts: list[bytes]) -> list[Any]:
    prefix = b"event: state\ndata: "
    assert all(part.startswith(prefix) and part.endswith(b"\n\n") for part in parts)
    return [orjson.loads(part.removeprefix(prefix)) for part in parts]


def watchers(*states: Any, ended: asyncio.Event | None = None) -> Watchers:
    """Watchers that wait for nothing between looks."""
    return Watchers(Looks(*states), ended or asyncio.Event(), 0.0)


async def test_a_state_is_sent_when_it_is_new() -> None:
    said = watchers({"a": 1}, {"a": 1}, {"a": 1}, {"a": "\n\n"}, {"a": 1}).events()
    # Once more behind the last change, after which rates are 0.
    expected = [{"a": 1}, {"a": 1}, {"a": "\n\n"}, {"a": 1}, {"a": 1}]
    assert states(await read(said, 5)) == expected
    assert await anext(said) == b":\n\n"  # nothing is new, but a client that left is found
    await said.aclose()


async def test_the_end_of_the_server_ends_all() -> None:
    ended = asyncio.Event()
    said = watchers({}, ended=ended).events()
    await anext(said)
    ended.set()
    assert [part async for part in said] == []


async def test_who_leaves_makes_room() -> None:
    several = watchers({})
    watching = [several.events() for _ in range(MOST_WATCHERS)]
    for said in watching:
        await anext(said)
    with pytest.raises(BusyError, match=f"{MOST_WATCHERS} pages"):
        await anext(several.events())
    await watching[0].aclose()
    watching[0] = several.events()
    for said in watching:
        await anext(said)
        await said.aclose()


async def test_a_page_that_is_closed_leaves_no_trace(shared: ServiceUnderTest) -> None:
    """Nothing is said of it in the log, and the next one finds its place."""
    for _ in range(MOST_WATCHERS + 1):
        page = Connection("/page/events", b"", ("host", "127.0.0.1"), method="GET")
        running = asyncio.create_task(page.call(shared.asgi))
        async with asyncio.timeout(LIMIT_SECONDS):
            await page.answered.wait()
            page.go_away()
            await running
        assert page.status == 200
        assert page.answer.startswith(b'event: start\ndata: {"uptime_seconds":')
