"""Events: each state once, an end for all, never too many."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, cast

import orjson
import pytest

from server.errors import BusyError
from server.page import events
from server.page.events import MOST_WATCHERS, Watchers


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_SECONDS", 0.0)


class Looks:
    """Returns ``states`` one after the other, the last one for ever."""

    def __init__(self, *states: Any) -> None:
        self._states = list(states)

    async def __call__(self) -> Any:
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]


async def read(said: AsyncIterator[bytes], count: int) -> list[bytes]:
    return [await anext(said) for _ in range(count)]


def states(parts: list[bytes]) -> list[Any]:
    prefix = b"event: state\ndata: "
    assert all(part.startswith(prefix) and part.endswith(b"\n\n") for part in parts)
    return [orjson.loads(part.removeprefix(prefix)) for part in parts]


async def test_a_state_is_sent_when_it_is_new() -> None:
    said = Watchers(asyncio.Event()).watch(Looks({"a": 1}, {"a": 1}, {"a": "\n\n"}, {"a": 1}))
    assert states(await read(said, 3)) == [{"a": 1}, {"a": "\n\n"}, {"a": 1}]
    assert await anext(said) == b":\n\n"  # nothing is new, but a client that left is found


async def test_the_end_of_the_server_ends_all() -> None:
    ended = asyncio.Event()
    said = Watchers(ended).watch(Looks({}))
    await anext(said)
    ended.set()
    assert [part async for part in said] == []


async def test_who_leaves_makes_room() -> None:
    watchers = Watchers(asyncio.Event())
    open_ones = [watchers.watch(Looks({})) for _ in range(MOST_WATCHERS)]
    for said in open_ones:
        await anext(said)
    with pytest.raises(BusyError, match=f"{MOST_WATCHERS} pages"):
        watchers.watch(Looks({}))
    async with aclosing(cast(Any, open_ones[0])):
        pass
    await anext(watchers.watch(Looks({})))


async def test_a_watcher_that_is_cancelled_makes_room() -> None:
    """At each await: before the first state, while it looks, while it waits."""
    watchers = Watchers(asyncio.Event())
    for turns in range(6):
        for _ in range(MOST_WATCHERS + 1):
            said = watchers.watch(Looks({}))

            async def watch(said: AsyncIterator[bytes] = said) -> None:
                async with aclosing(cast(Any, said)):
                    async for _ in said:
                        pass

            task = asyncio.create_task(watch())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
