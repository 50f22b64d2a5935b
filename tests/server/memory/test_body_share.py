"""Photographs in one small memory: whatever they take, in whatever order they come, all are answered."""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import BusyError
from server.memory.body_share import BodyPart, BodyShare
from server.memory.request_memory import Lease, RequestMemory
from server.memory.request_room import room_beside_bodies
from tests.examples import examples
from tests.server.support import LIMIT_SECONDS

CAPACITY = 8 << 20


class Photograph(NamedTuple):
    """Parts of what requests have room for: the body, what the pixels take of what is left, the sweep.

    ``says_length``: before the body comes. ``turns``: of the loop, between what happens. ``is_slow``: so
    comes the body, from its beginning on, and half way is found out.
    """

    body: float
    pixels: float
    sweep: float
    says_length: bool
    turns: int
    is_slow: tuple[bool, bool] = (False, False)


PART = st.floats(0.001, 1)
PHOTOGRAPHS = st.lists(
    st.builds(Photograph, PART, PART, PART, st.booleans(), st.integers(0, 4)),
    min_size=2,
    max_size=12,
)


SLOW = st.tuples(st.booleans(), st.booleans())
SOME_SLOW = st.lists(
    st.builds(Photograph, PART, PART, PART, st.booleans(), st.integers(0, 4), SLOW),
    min_size=2,
    max_size=12,
)


class Kitchen:
    """What requests with photographs share, and how each of them goes about it.

    ``usual``: what each of them takes at most; None: whatever there is.
    """

    def __init__(self, usual: int | None = None) -> None:
        self.memory = RequestMemory(CAPACITY)
        self.most = self.memory.room_bytes if usual is None else usual
        self.share = BodyShare(self.memory)
        self.share.divide(self.most)
        self.turn = asyncio.Lock()

    async def answer(self, photograph: Photograph, client: str = "") -> None:
        """Do as server/protocol/pictures.py does."""
        body = int(photograph.body * self.most)
        slow, found_out = photograph.is_slow
        with closing(Lease(self.memory, client)) as lease:
            with closing(BodyPart(self.share, client)) as part:
                for arrived in (body // 2, body):
                    has_come = body if photograph.says_length else arrived
                    await part.hold(has_come, is_all=photograph.says_length, is_slow=slow)
                    await lease.hold(has_come)
                    await self.others(photograph)
                    if found_out:
                        part.step_aside()
                async with self.turn:
                    room = min(lease.room_bytes - part.others_bytes, self.most)
                    await lease.hold(body + int(photograph.pixels * max(room - body, 0)))
                    await self.others(photograph)
            await lease.hold(int(photograph.sweep * lease.held_bytes))
            await self.others(photograph)

    @property
    def held(self) -> tuple[int, int, int]:
        share = self.share
        return self.memory.used_bytes, share.line.used_bytes, share.aside.used_bytes

    async def others(self, photograph: Photograph) -> None:
        for _ in range(photograph.turns):
            await asyncio.sleep(0)
            assert self.memory.used_bytes <= CAPACITY


@given(PHOTOGRAPHS)
@examples(few=75, many=10_000)
def test_all_photographs_are_answered(photographs: Sequence[Photograph]) -> None:
    async def run() -> None:
        kitchen = Kitchen()
        async with asyncio.timeout(LIMIT_SECONDS):
            await asyncio.gather(*map(kitchen.answer, photographs))
        assert kitchen.held == (0, 0, 0)

    asyncio.run(run())


@given(SOME_SLOW, st.floats(0.1, 1))
@examples(few=75, many=10_000)
def test_slow_ones_leave_room_for_a_usual_one(
    photographs: Sequence[Photograph], usual: float
) -> None:
    async def run() -> None:
        kitchen = Kitchen(int(usual * CAPACITY * 3 // 4))
        async with asyncio.timeout(LIMIT_SECONDS):
            asked = map(kitchen.answer, photographs)
            ended = await asyncio.gather(*asked, return_exceptions=True)
        for photograph, error in zip(photographs, ended, strict=True):
            may_not_grow = any(photograph.is_slow) and not photograph.says_length
            assert error is None or (may_not_grow and isinstance(error, BusyError))
        assert kitchen.held == (0, 0, 0)

    asyncio.run(run())


@given(PHOTOGRAPHS, st.integers(0, 40))
@examples(few=50, many=5000)
def test_who_leaves_gives_back_what_he_has(photographs: Sequence[Photograph], after: int) -> None:
    async def run() -> None:
        kitchen = Kitchen()
        tasks = [asyncio.create_task(kitchen.answer(each)) for each in photographs]
        for _ in range(after):
            await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        async with asyncio.timeout(LIMIT_SECONDS):
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in ended[1::2]} <= {type(None)}
        assert kitchen.held == (0, 0, 0)

    asyncio.run(run())


def test_a_photograph_has_the_room_that_was_reckoned() -> None:
    needed = 1 << 20
    memory = RequestMemory(CAPACITY)
    memory.capacity_bytes -= memory.room_bytes - room_beside_bodies(needed)
    share = BodyShare(memory)
    with closing(BodyPart(share, "")) as part:
        assert memory.room_bytes - part.others_bytes >= needed


async def test_the_line_for_the_share_has_an_end() -> None:
    share = BodyShare(RequestMemory(CAPACITY, limit=1))
    first, second, third = (BodyPart(share, "") for _ in range(3))
    await first.hold(1, is_all=False)
    waits = asyncio.create_task(second.hold(1))
    await asyncio.sleep(0)
    with pytest.raises(BusyError, match="wait for memory"):
        await third.hold(1)
    first.close()
    await waits
    second.close()
    assert share.line.used_bytes == 0
