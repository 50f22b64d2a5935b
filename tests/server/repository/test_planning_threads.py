"""Plans that no caller waits for any more: the thread ends, and the server does not wait for it."""

import asyncio
import gc
import threading

import pytest

from pipeline.program.stopping import go_on
from server.errors import NotServingError
from server.repository import planning_threads
from server.repository.planning_threads import PlanningThreads
from tests.server.conftest import SettingsFactory
from tests.server.support import LIMIT_SECONDS, Gate, serving


class Endless:
    """A search that finds nothing, and says when it has begun and how it ended."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()

    def __call__(self, *_: object, **__: object) -> None:
        self.begun.set()
        try:
            while True:
                go_on()
        finally:
            self.ended.set()

    async def began(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, LIMIT_SECONDS)


async def test_a_plan_ends_when_who_asked_for_it_goes() -> None:
    search, threads = Endless(), PlanningThreads()
    asking = asyncio.create_task(threads.run(search))
    await search.began()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert search.ended.is_set()  # what is planned next has the memory for itself
    assert await threads.run(lambda: 7) == 7  # others go on


@pytest.mark.parametrize("in_time", [True, False])
async def test_the_log_says_nothing_of_a_plan_that_nobody_wants(
    monkeypatch: pytest.MonkeyPatch, in_time: bool
) -> None:
    monkeypatch.setattr(planning_threads, "_END_SECONDS", LIMIT_SECONDS if in_time else 0)
    complaints: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, told: complaints.append(told))
    search, threads = Endless(), PlanningThreads()
    asking = asyncio.create_task(threads.run(search))
    await search.began()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await threads.run(search.ended.wait)
    threads.close()
    del asking
    gc.collect()  # an error is complained of when the future goes that has it
    assert complaints == []


async def test_nobody_waits_for_ever_for_a_plan_that_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planning_threads, "_END_SECONDS", 0.01)
    gate, threads = Gate(), PlanningThreads()
    asking = asyncio.create_task(threads.run(gate.hold))
    await gate.reached()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    gate.open()


async def test_plans_end_when_the_server_does() -> None:
    search, threads = Endless(), PlanningThreads()
    asking = asyncio.create_task(threads.run(search))
    await search.began()
    threads.close()
    with pytest.raises(NotServingError, match="stopping"):
        await asking
    with pytest.raises(NotServingError, match="stopping"):
        await threads.run(search)


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("what", ["sharer", "share_out"])
async def test_a_server_stops_while_a_model_is_planned(
    settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch, what: str, cancelled: bool
) -> None:
    """While what it needs at least is searched for, or its share."""
    search = Endless()
    places = {
        "sharer": "server.repository.environment",
        "share_out": "server.repository.fleet",
    }
    async with serving(settings(models=("tiny",))) as service:
        monkeypatch.setattr(f"{places[what]}.{what}", search)
        loading = asyncio.create_task(service.inside.repository.load("pair"))
        await search.began()
        if cancelled:
            loading.cancel()
    assert search.ended.wait(LIMIT_SECONDS)
    with pytest.raises(asyncio.CancelledError if cancelled else NotServingError):
        await loading
    assert service.inside.budget.held() == {}
