"""What a worker computes now: since when, whether it is stuck, and its claims."""

import asyncio

from pipeline.execution.baton import FREE, Baton
from pipeline.execution.given import copies
from server.repository.working import Job, Underway
from server.requests.waiting import tell
from server.scheduling.sweeps import Sweep
from tests.examples import over


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def sweep(*limits: float) -> Sweep:
    return Sweep(
        "m",
        tuple(
            Job(
                model="m",
                deadline=limit,
                limit=limit,
                inputs={},
                take=copies,
                future=asyncio.get_running_loop().create_future(),
            )
            for limit in limits
        ),
    )


async def test_the_oldest_counts() -> None:
    clock = Clock()
    runs, first, second = Underway(clock), sweep(110.0), sweep(110.0)
    assert runs.longest_seconds() == 0.0
    for each in (first, second):
        assert runs.begin(each, FREE) == clock.now
        clock.now += 1.0
    assert runs.longest_seconds() == 2.0
    runs.end(first)
    assert runs.longest_seconds() == 1.0


@over(
    "passed, factor, least, stuck",
    [
        (19.0, 2.0, 0.0, False),  # the last of its requests has 10 s
        (21.0, 2.0, 0.0, True),
        (21.0, 2.0, 30.0, False),
        (31.0, 2.0, 30.0, True),
    ],
)
async def test_stuck(passed: float, factor: float, least: float, stuck: bool) -> None:
    clock = Clock()
    runs = Underway(clock)
    runs.begin(sweep(101.0, 110.0), FREE)
    clock.now += passed
    assert runs.is_stuck(factor, least) == stuck


async def test_claims_of_what_has_ended_are_forgotten() -> None:
    runs, baton = Underway(), Baton()
    ended, running = baton.claim(), baton.claim()
    over = sweep(110.0)
    runs.begin(over, ended)
    runs.end(over)
    runs.begin(sweep(110.0), running)
    runs.end_claims()
    assert (ended.over, running.over) == (False, True)


async def test_who_has_left_is_told_nothing() -> None:
    job = Job.within(1.0, {}, copies, 0, 0.0)
    job.future.cancel()
    tell(job.future, RuntimeError("over"))
    await asyncio.sleep(0)
    assert job.future.cancelled()


async def test_whose_loop_has_ended_is_told_nothing() -> None:
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    loop.close()
    tell(future, None)
