"""Changes are made one after the other, each to its end; whatever else is done ends for them."""

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.execution.shielded import run_to_completion
from server.causes import attribution, because
from server.errors import BusyError, ConflictError, NotServingError
from server.repository.changes import Change, Fetch, Load, Unload
from server.repository.planning_threads import PlanningThreads
from server.repository.reconciling import MAX_CHANGES, Reconciler
from tests.server.support import settled

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["load", "unload", "fail", "grow", "idle", "leave", "turn", "turn"]),
        st.sampled_from("ab"),
        st.integers(0, 5),
    ),
    max_size=30,
)


class Work:
    """Changes, growth and idle work that take some turns of the loop; no two of them at once."""

    def __init__(self) -> None:
        self.planning = PlanningThreads()
        self.reconciler = Reconciler(self.take, self.grow, self.planning)
        #: What was made; how often there was growth to its end, and what was desired before.
        self.changes: list[Change] = []
        self.desired = self.grown = 0
        self.before_growth = -1
        self._busy = False

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        assert not self._busy
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    async def take(self, change: Change) -> int:
        with self._exclusive():
            index = len(self.changes)
            self.changes.append(change)
            for _ in range(index % 4):
                await asyncio.sleep(0)
            if isinstance(change, Unload) and change.model == "fails":
                raise ConflictError("as it was drawn")
            return index

    async def grow(self) -> None:
        with self._exclusive():
            await run_to_completion(asyncio.sleep(0))
            await asyncio.sleep(0)
            self.grown, self.before_growth = self.grown + 1, len(self.changes)

    async def idle(self) -> None:
        with self._exclusive():
            await run_to_completion(asyncio.sleep(0))
            await asyncio.sleep(0)

    async def call(self, change: Change) -> None:
        """Desire ``change``; what it came to began after that."""
        before = len(self.changes)
        try:
            assert await self.reconciler.reached(change) >= before
        except ConflictError:
            assert change == Unload("fails")
        assert self.changes[before:].count(change) >= 1


@given(actions=ACTIONS)
def test_changes_in_any_order_run_to_completion(
    actions: list[tuple[str, str, int]],
) -> None:
    asyncio.run(_acted(actions))


async def _acted(actions: list[tuple[str, str, int]]) -> None:
    work, calls, is_growing = Work(), list[asyncio.Task[None]](), False
    for what, name, index in actions:
        match what:
            case "load":
                calls.append(asyncio.create_task(work.call(Load(name))))
            case "unload":
                calls.append(asyncio.create_task(work.call(Unload(name))))
            case "fail":
                calls.append(asyncio.create_task(work.call(Unload("fails"))))
            case "grow":
                work.reconciler.grow_later()
                is_growing = True
            case "idle":
                calls.append(asyncio.create_task(work.reconciler.in_idle_time(work.idle)))
            case "leave" if calls:
                calls[index % len(calls)].cancel()
            case _:
                for _ in range(index):
                    await asyncio.sleep(0)
    for result in await asyncio.gather(*calls, return_exceptions=True):
        assert result is None or isinstance(result, asyncio.CancelledError), result
    await work.reconciler.at_rest()
    assert bool(work.grown) == is_growing
    await work.reconciler.close()
    with pytest.raises(NotServingError):
        await work.reconciler.reached(Load("a"))


async def test_what_waits_is_one_with_what_is_equal_and_comes_in_order() -> None:
    work = Work()
    changes: list[Change] = [Load("a"), Load("b"), Load("a"), Unload("a"), Load("b")]
    indices = await asyncio.gather(*map(work.reconciler.reached, changes))
    assert indices == [0, 1, 0, 2, 1]
    assert work.changes == [Load("a"), Load("b"), Unload("a")]


async def test_growth_ends_for_a_change_and_goes_on_after_it() -> None:
    work = Work()
    work.reconciler.grow_later()
    await asyncio.sleep(0)
    await work.reconciler.reached(Load("a"))
    assert work.grown == 0
    await work.reconciler.at_rest()
    assert (work.grown, work.before_growth) == (1, 1)
    with work.reconciler.growing_afterwards():
        work.reconciler.grow_later()
        await settled()
        assert work.grown == 1
    await work.reconciler.at_rest()
    assert work.grown == 2


async def test_a_generation_is_observed_when_its_change_is_complete() -> None:
    """Also with an error; equal changes that wait are of one generation."""
    work = Work()
    generations = work.reconciler.generations
    changes: list[Change] = [Load("fails"), Load("fails"), Unload("fails"), Fetch("fails/1")]
    calls = [asyncio.create_task(work.reconciler.reached(change)) for change in changes]
    await asyncio.sleep(0)
    assert generations == {"fails": (2, 0)}
    await asyncio.gather(*calls, return_exceptions=True)
    assert generations == {"fails": (2, 2)}
    work.reconciler.forget("fails")
    assert generations == {}


async def test_each_change_has_the_reason_of_its_caller() -> None:
    reasons = []

    async def take(change: Change) -> None:
        reasons.append(attribution()["reason"])

    reconciler = Reconciler(take, Work().grow, PlanningThreads())
    calls = []
    for name in "ab":
        with because(name):
            calls.append(asyncio.create_task(reconciler.reached(Load(name))))
    await asyncio.gather(*calls)
    assert reasons == ["a", "b"]


async def test_changes_that_wait_have_a_limit() -> None:
    work = Work()
    calls = [
        asyncio.ensure_future(work.reconciler.reached(Load(f"model-{index}")))
        for index in range(MAX_CHANGES + 2)
    ]
    # One more of those that wait waits with them, and what follows from observations always does.
    same = asyncio.ensure_future(work.reconciler.reached(Load("model-1")))
    fetch = asyncio.ensure_future(work.reconciler.reached(Fetch("slot")))
    results = await asyncio.gather(*calls, return_exceptions=True)
    refused = [result for result in results if isinstance(result, BusyError)]
    assert 1 <= len(refused) <= 2
    assert len(set(results) - set(refused)) == len(results) - len(refused)
    assert await same == results[1]
    assert isinstance(await fetch, int)
    await work.reconciler.close()


async def test_what_fails_without_callers_is_logged_in_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    work = Work()
    call = asyncio.create_task(work.call(Unload("fails")))
    await asyncio.sleep(0)
    call.cancel()
    await work.reconciler.at_rest()
    assert caplog.messages == ["unload of model fails failed: as it was drawn"]
    work.planning.close()
