"""Calls that are cancelled while a thread works for them: the next one begins when the thread has ended."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from server.errors import NotServingError
from server.repository import planning_threads, polling
from server.repository.catalog import Catalog
from server.repository.planning_threads import PlanningThreads
from server.repository.polling import Poller
from server.repository.preparing import Prepared, Preparer
from server.service import Service
from tests.examples import over
from tests.server.conftest import SettingsFactory
from tests.server.support import LIMIT_SECONDS, Gate, ServiceUnderTest, serving, settled, until


class Blocked:
    """Stands for ``name`` of ``owner``: the first call waits for the gate; says what began and ended."""

    def __init__(
        self, patch: pytest.MonkeyPatch, owner: type, name: str, events: list[str]
    ) -> None:
        self.gate = Gate()
        first = [self.gate]
        original: Callable[..., Any] = getattr(owner, name)

        def blocked(*arguments: Any) -> Any:
            if first:
                events.append("began")
                try:
                    first.pop().hold()
                except AssertionError:
                    events.append("was never let go")
                    raise
                events.append("ended")
            return original(*arguments)

        patch.setattr(owner, name, blocked)


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled call does not wait at all for the end of its planning."""
    monkeypatch.setattr(planning_threads, "_END_SECONDS", 0)


async def cancelled(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize(
    ("owner", "name"), [(Preparer, "prepare"), (Catalog, "slots_of"), (Prepared, "is_there")]
)
async def test_a_load_whose_caller_has_left_comes_before_what_follows(
    settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    """Whatever of it runs on a thread: a search, a look at the folder, or at files of loaded models."""
    async with serving(settings(models=("tiny",))) as service:
        repository, events = service.inside.repository, list[str]()
        blocked = Blocked(monkeypatch, owner, name, events)
        loading = asyncio.create_task(repository.load("pair"))
        await blocked.gate.reached()
        await cancelled(loading)

        async def unload() -> None:
            await repository.unload("tiny")
            events.append("unloaded")

        following = asyncio.create_task(unload())
        for _ in range(5):
            await settled()
        assert events == ["began"]
        blocked.gate.open()
        await following
        assert events == ["began", "ended", "unloaded"]
        assert repository.models["pair"].serves


@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize("leaves", [False, True])
async def test_a_server_ends_while_a_thread_goes_on(
    settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """Whether the caller of the load is still there, or not."""
    async with serving(settings(models=("tiny",))) as service:
        events = list[str]()
        blocked = Blocked(monkeypatch, Preparer, "prepare", events)
        loading = asyncio.create_task(service.inside.repository.load("pair"))
        await blocked.gate.reached()
        if leaves:
            await cancelled(loading)
    assert events == ["began"]
    with pytest.raises(asyncio.CancelledError if leaves else NotServingError):
        await loading
    assert service.inside.budget.held() == {}
    blocked.gate.open()


@pytest.mark.usefixtures("no_patience")
@over("ends", [0, 1, 2])
async def test_abandoned_planning_is_over_when_the_last_is_complete(ends: int) -> None:
    threads, gates = PlanningThreads(), [Gate(), Gate()]
    for gate in gates:
        task = asyncio.create_task(threads.run(gate.hold))
        await gate.reached()
        await cancelled(task)
    running = asyncio.create_task(
        threads.run((gate_of_running := Gate()).hold)
    )  # it is not cancelled
    await gate_of_running.reached()
    waiting = asyncio.create_task(threads.over())
    for gate in gates[:ends]:
        gate.open()
    if ends < 2:
        await settled()
        assert not waiting.done()
        threads.close()  # nothing begins any more
    async with asyncio.timeout(LIMIT_SECONDS):
        await waiting
    for gate in (*gates, gate_of_running):
        gate.open()
    await asyncio.wait({running})
    threads.close()
    await threads.over()


async def test_work_for_which_there_is_no_thread_never_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pool has it in its queue by then: a thread that is free later finds nothing to do."""
    threads, ran = PlanningThreads(), list[int]()

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            await threads.run(lambda: ran.append(1))
    await threads.run(lambda: ran.append(2))
    threads.close()
    assert ran == [2]
    with pytest.raises(NotServingError):
        await threads.run(lambda: ran.append(3))


async def by_poller(service: ServiceUnderTest) -> None:
    await Poller(service.inside.repository, ())._bring("tiny")


async def by_signal(service: ServiceUnderTest) -> None:
    await polling.follow(service.inside.repository)


@pytest.mark.parametrize("follow", [by_poller, by_signal])
async def test_a_model_that_is_unloaded_while_a_poll_waits_stays_so(
    settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch, follow: Callable[..., Any]
) -> None:
    """The poll has decided to load it before it has its turn; the client's call comes first."""
    async with serving(settings(models=("tiny",))) as service:
        repository = service.inside.repository
        (entry,) = repository.entries()
        blocked = Blocked(monkeypatch, Preparer, "prepare", [])
        before = asyncio.create_task(repository.load("pair"))
        await blocked.gate.reached()
        unloading = asyncio.create_task(repository.unload("tiny"))
        await settled()
        following = asyncio.create_task(follow(service))
        await until(lambda: len(repository._reconciler._desired) == 2)
        blocked.gate.open()
        await asyncio.gather(before, unloading, following)
        assert entry.absence == "unloaded"


async def test_a_model_that_is_unloaded_while_the_start_loads_another_stays_so(
    settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = Blocked(monkeypatch, Preparer, "prepare", [])
    async with Service(settings(models=("pair", "tiny"))) as service:
        await blocked.gate.reached()
        unloading = asyncio.create_task(service.repository.unload("tiny"))
        await settled()
        blocked.gate.open()
        await service.loaded()
        await unloading
        assert service.repository.models["pair"].serves
        assert service.repository.models["tiny"].absence == "unloaded"
