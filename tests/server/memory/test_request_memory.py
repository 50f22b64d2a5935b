"""The pool of memory that requests share: never over its capacity, in order, and nothing is lost."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.budget import request_needs
from pipeline.budget.budget import Budget
from server.errors import BusyError, TooLargeError
from server.memory import request_memory
from server.memory.request_memory import Lease, RequestMemory, Trimming, anonymous_bytes
from tests.examples import examples

CAPACITY = 10

#: (lease, bytes to hold) or, with None, (lease, leave), or (None, a turn of the loop).
Step = tuple[int | None, int | None]
STEPS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 4)),
        st.one_of(st.none(), st.integers(0, CAPACITY)),
    ),
    max_size=40,
)


async def settled() -> None:
    """Let all requests go on that can."""
    for _ in range(5):
        await asyncio.sleep(0)


class Crowd:
    """Requests that hold, wait for more, are cancelled and leave, in any order."""

    def __init__(self) -> None:
        self.memory = RequestMemory(CAPACITY)
        self.leases: dict[int, Lease] = {}
        self.waits: dict[int, asyncio.Task[None]] = {}
        #: Also those that have ended, whose errors are looked at in the end.
        self.tasks: list[asyncio.Task[None]] = []

    async def step(self, step: Step) -> None:
        number, n_bytes = step
        if number is None:
            await asyncio.sleep(0)
        elif n_bytes is None:
            self.leave(number)
        elif number not in self.waits or self.waits[number].done():
            lease = self.leases.setdefault(number, Lease(self.memory))
            self.waits[number] = asyncio.create_task(lease.hold(n_bytes))
            self.tasks.append(self.waits[number])
        self.check()

    def leave(self, number: int) -> None:
        """End a request as a client does that leaves, whether it waits or not."""
        task, lease = self.waits.pop(number, None), self.leases.pop(number, None)
        if lease is None:
            return
        if task is None or task.done():
            lease.close()
        else:
            task.cancel()
            # What a request holds it gives back after its wait has ended.
            task.add_done_callback(lambda _: lease.close())
        self.ended = task

    def check(self) -> None:
        assert 0 <= self.memory.used_bytes <= CAPACITY
        assert all(lease.held_bytes >= 0 for lease in self.leases.values())

    async def end(self) -> None:
        for number in list(self.leases):
            self.leave(number)
        await settled()
        assert self.memory.used_bytes == 0
        assert self.memory.waiting == 0


@pytest.fixture(autouse=True, scope="module")
def _without_a_part_for_small_ones() -> Iterator[None]:
    """Numbers here are small: without this all of them would pass."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_memory, "SMALL_BYTES", 0)
        patch.setattr(request_needs, "_KEPT_BYTES", 0)
        yield


@given(STEPS)
@examples(few=35, many=10_000)
def test_whatever_happens_what_is_held_is_bounded_and_given_back(steps: list[Step]) -> None:
    failures: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: failures.append(fault))
        crowd = Crowd()
        for step in steps:
            await crowd.step(step)
        await crowd.end()
        for error in await asyncio.gather(*crowd.tasks, return_exceptions=True):
            assert error is None or isinstance(error, asyncio.CancelledError | BusyError), error

    asyncio.run(run())
    assert not failures


@given(STEPS)
@examples(few=25, many=5000)
def test_at_rest_nobody_waits_who_could_go_on(steps: list[Step]) -> None:
    """The first in line waits only because its bytes are not free; those that hold some come first."""

    async def run() -> None:
        crowd = Crowd()
        for step in steps:
            await crowd.step(step)
        await settled()
        held = sum(lease.held_bytes for lease in crowd.leases.values())
        assert crowd.memory.used_bytes == held
        waiting = [number for number, task in crowd.waits.items() if not task.done()]
        assert crowd.memory.waiting == len(waiting)
        assert sum(crowd.leases[number].held_bytes > 0 for number in waiting) <= 1  # so it goes on
        assert not (waiting and held == 0)
        await crowd.end()

    asyncio.run(run())


async def waiting(
    memory: RequestMemory, n_bytes: int, order: list[str], name: str, **how: Any
) -> Any:
    """Begin to take ``n_bytes``; ``name`` comes into ``order`` when they are there."""

    async def take() -> None:
        await memory.take(n_bytes, **how)
        order.append(name)

    task = asyncio.create_task(take())
    await asyncio.sleep(0)
    return task


async def test_first_come_first_served_and_a_holder_before_newcomers() -> None:
    memory, order = RequestMemory(CAPACITY), list[str]()
    await memory.take(CAPACITY)
    tasks = [
        await waiting(memory, 4, order, "new 1"),
        await waiting(memory, 5, order, "holder", holds=True),
        await waiting(memory, 1, order, "new 2"),
    ]
    with pytest.raises(BusyError, match="request_memory"):
        await memory.take(5, holds=True)  # each could wait for what the other holds
    for _ in range(5):
        memory.give(1)
        await settled()
    assert order == ["holder"]
    memory.give(CAPACITY - 5)
    await asyncio.gather(*tasks)
    assert order == ["holder", "new 1", "new 2"]
    assert memory.used_bytes == CAPACITY


async def test_clients_take_turns_however_many_one_has_in_line() -> None:
    memory, order = RequestMemory(CAPACITY), list[str]()
    await memory.take(CAPACITY, "many")
    tasks = [await waiting(memory, CAPACITY, order, f"many {n}", client="many") for n in range(3)]
    tasks += [await waiting(memory, CAPACITY, order, f"few {n}", client="few") for n in range(2)]
    for holder in ("many", "many", "few", "many", "few"):
        memory.give(CAPACITY, holder)
        await settled()
    await asyncio.gather(*tasks)
    assert order == ["many 0", "few 0", "many 1", "few 1", "many 2"]


async def test_a_newcomer_passes_nobody() -> None:
    memory, order = RequestMemory(CAPACITY), list[str]()
    await memory.take(8)
    large = await waiting(memory, 5, order, "large")
    assert not memory.take_at_once(1, "small", holds=False)
    small = await waiting(memory, 1, order, "small")
    assert order == []
    memory.give(8)
    await asyncio.gather(large, small)
    assert order == ["large", "small"]


async def test_who_leaves_the_line_lets_the_next_one_in() -> None:
    memory, order = RequestMemory(CAPACITY), list[str]()
    await memory.take(8)
    large = await waiting(memory, 5, order, "large")
    small = await waiting(memory, 2, order, "small")
    large.cancel()
    await small
    assert memory.used_bytes == CAPACITY


async def test_who_is_cancelled_as_memory_comes_back_ends_as_cancelled() -> None:
    """Both in one turn of the loop: cancelled first, then what it waited for is given back."""
    memory, order = RequestMemory(CAPACITY), list[str]()
    await memory.take(CAPACITY)
    waits = await waiting(memory, 5, order, "waits")
    waits.cancel()
    memory.give(CAPACITY)
    with pytest.raises(asyncio.CancelledError):
        await waits
    assert memory.used_bytes == 0
    assert memory.waiting == 0


async def test_who_is_cancelled_after_his_turn_came_gives_it_on() -> None:
    memory, order = RequestMemory(CAPACITY), list[str]()
    await memory.take(CAPACITY)
    first = await waiting(memory, CAPACITY, order, "first")
    second = await waiting(memory, CAPACITY, order, "second")
    memory.give(CAPACITY)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    assert order == ["second"]


async def test_a_lease_never_has_more_than_there_is() -> None:
    memory = RequestMemory(CAPACITY)
    with closing(Lease(memory)) as lease:
        await lease.hold(4)
        with pytest.raises(TooLargeError, match="request_memory"):
            await lease.hold(CAPACITY + 1)
        assert memory.used_bytes == lease.held_bytes == 4
        await lease.hold(CAPACITY)
        await lease.hold(1)
        assert memory.used_bytes == 1
    assert memory.used_bytes == 0


async def test_a_deadline_ends_the_wait_and_takes_nothing() -> None:
    memory = RequestMemory(CAPACITY)
    await memory.take(CAPACITY)
    with closing(Lease(memory)) as lease, pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await lease.hold(1)
    assert (memory.used_bytes, memory.waiting) == (CAPACITY, 0)


# Free pages of the heap go back where the process holds more than the budget explains.

BASE, MIB = 60 << 20, 1 << 20


class Heap:
    """A process of ``used`` bytes beside what is ``free`` in its heap, which trimming gives back."""

    def __init__(self) -> None:
        self.used, self.free, self.trims = BASE, 0, 0

    def held(self) -> int:
        return self.used + self.free

    def trim(self) -> None:
        self.free = 0
        self.trims += 1


@pytest.fixture
def heap() -> Heap:
    return Heap()


@pytest.fixture
def trimming(heap: Heap) -> Trimming:
    return Trimming(Budget(6 * MIB), lambda: BASE, heap.held, heap.trim)


def test_what_the_budget_has_stays(heap: Heap, trimming: Trimming) -> None:
    heap.free = 6 * MIB
    trimming.look()
    assert heap.free == 6 * MIB
    heap.free += 1
    trimming.look()
    assert heap.free == 0


def test_what_is_in_use_is_not_trimmed_again_and_again(heap: Heap, trimming: Trimming) -> None:
    heap.used += 7 * MIB
    for _ in range(10):
        heap.free += MIB // 2
        trimming.look()
    assert heap.trims == 4
    assert heap.free <= MIB


def test_after_less_was_held_growth_counts_from_there(heap: Heap, trimming: Trimming) -> None:
    heap.used += 20 * MIB
    trimming.look()
    heap.used = BASE
    trimming.look()
    heap.free = 7 * MIB
    trimming.look()
    assert (heap.trims, heap.free) == (2, 0)


def test_holes_that_kernels_leave_are_trimmed_and_not_what_they_need_again(
    heap: Heap, trimming: Trimming
) -> None:
    heap.used += 6 * MIB
    for _ in range(6):
        heap.free = max(heap.free, 2 * MIB)  # what kernels need again
        trimming.look(2 * MIB)
    assert heap.trims == 1  # the first look knows nothing of before
    for _ in range(6):
        heap.free += 2 * MIB  # the end of the heap was occupied: another block
        trimming.look(2 * MIB)
        assert heap.free <= 4 * MIB
    assert heap.trims == 4


def test_what_the_system_does_not_say_is_nothing(tmp_path: Path) -> None:
    assert anonymous_bytes(tmp_path / "missing") == 0
    assert anonymous_bytes() > 0


async def test_a_wait_is_estimated_from_those_before() -> None:
    now = 0.0
    memory = RequestMemory(6 * MIB, clock=lambda: now)
    assert memory.wait_seconds(MIB, "a") == 0.0  # none has waited
    await memory.take(memory.room_bytes, "holder")
    waiting = [asyncio.create_task(memory.take(MIB, "b")) for _ in range(4)]
    await asyncio.sleep(0)
    for _ in range(3):
        now += 2.0
        memory.give(MIB, "holder")
    # Of those that wait one is left; the estimate is half as much again as it was so far.
    assert memory.waiting == 1
    assert memory.wait_seconds(MIB, "b") == pytest.approx(1.5 * (2.0 + 2.0))
    assert memory.wait_seconds(2 * MIB, "b") == pytest.approx(1.5 * (2.0 + 4.0))
    waiting += [asyncio.create_task(memory.take(MIB, "b")) for _ in range(8)]
    await asyncio.sleep(0)
    assert memory.wait_seconds(MIB, "b") == pytest.approx(1.5 * 10 * 2.0)
    # Another client takes turns with that one.
    assert memory.wait_seconds(MIB, "new") == pytest.approx(1.5 * 2 * 2.0)
    # A wrong guess does not last.
    for _ in range(500):
        memory.doubt()
    assert memory.wait_seconds(MIB, "b") < 2.0
    for task in waiting[4:]:
        task.cancel()
    memory.give(MIB, "holder")
    await asyncio.wait(waiting)
    # Time in which none waited does not count.
    now += 1000.0
    task = asyncio.create_task(memory.take(MIB, "b"))
    await asyncio.sleep(0)
    now += 2.0
    memory.give(MIB, "holder")
    await task
    assert memory.wait_seconds(MIB, "new") < 4.0
