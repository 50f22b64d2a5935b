"""A model serves on a plan by rules of thumb while a search goes on, and then on what that has found."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.budget.search import Search
from pipeline.planning.plan import PlanError
from pipeline.program.stopping import PlanningStoppedError, go_on
from server.errors import FilesChangedError
from server.repository import preparing
from server.repository.entry import Entry, Loading
from server.repository.executor import Executor
from server.repository.fleet import FleetTarget
from server.repository.instances import Instance, Uses
from tests.server.conftest import SettingsFactory
from tests.server.support import LIMIT_SECONDS, Packs, ServiceUnderTest, arrays, inputs_for, serving

REPLAN = "/v2/repository/models/tiny/replan"
LOAD = "/v2/repository/models/pair/load"


class Held(Search):
    """Searches within a budget take long: they go on when ``found`` is set, or fail with ``failure``."""

    def __init__(self) -> None:
        self.begun, self.found = threading.Event(), threading.Event()
        self.stopped = threading.Semaphore(0)
        self.failure: Exception | None = None

    def fully(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if function.__name__ == "fit_lanes":
            self.begun.set()
            while not self.found.wait(0.002):
                try:
                    go_on()
                except PlanningStoppedError:
                    self.stopped.release()
                    raise
            if self.failure is not None:
                raise self.failure
        return function(*arguments)

    def briefly(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return None


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Held:
    held = Held()
    monkeypatch.setattr(preparing, "SearchApart", lambda *_: held)
    return held


@pytest.fixture
async def service(settings: SettingsFactory, search: Held) -> AsyncIterator[ServiceUnderTest]:
    async with serving(settings(models=("tiny",), models_budget=1 << 20)) as service:
        yield service
        search.found.set()


def is_heuristic(service: ServiceUnderTest, name: str = "tiny") -> bool:
    fitted = service.inside.repository.models.find(name).fitted
    assert fitted is not None
    budget = service.inside.budget
    assert budget.used_bytes <= budget.total_bytes
    return fitted.heuristic


async def answer(service: ServiceUnderTest) -> dict[str, bytes]:
    outputs = arrays(await service.infer("tiny", inputs_for("tiny")))
    return {name: array.tobytes() for name, array in outputs.items()}


async def grown(service: ServiceUnderTest) -> None:
    """Wait until models have what a search finds."""
    async with asyncio.timeout(LIMIT_SECONDS):
        await service.inside.repository.at_rest()


async def test_the_better_plan_is_taken_between_requests(
    service: ServiceUnderTest, search: Held
) -> None:
    assert (await service.client.get("/v2/health/ready")).status_code == 200
    assert is_heuristic(service)
    assert await asyncio.to_thread(search.begun.wait, LIMIT_SECONDS)
    before = await answer(service)
    asking = asyncio.create_task(answer(service))
    search.found.set()
    await grown(service)
    assert not is_heuristic(service)
    assert await asking == await answer(service) == before


async def test_a_limit_is_kept_at_once(
    service: ServiceUnderTest, search: Held, packs: Packs
) -> None:
    least = packs.smallest("tiny")
    answered = await service.client.post(REPLAN, json={"memory_bytes": least + 4096})
    assert answered.status_code == 200
    assert sum(service.inside.budget.held()["tiny"].values()) <= least + 4096
    assert is_heuristic(service)
    search.found.set()
    await grown(service)
    assert not is_heuristic(service)
    assert sum(service.inside.budget.held()["tiny"].values()) <= least + 4096


async def test_a_change_ends_the_search_and_another_begins(
    service: ServiceUnderTest, search: Held
) -> None:
    assert await asyncio.to_thread(search.begun.wait, LIMIT_SECONDS)
    assert (await service.client.post(LOAD)).status_code == 200
    assert search.stopped.acquire(timeout=LIMIT_SECONDS)
    assert is_heuristic(service)
    assert is_heuristic(service, "pair")
    search.found.set()
    await grown(service)
    assert not is_heuristic(service)
    assert not is_heuristic(service, "pair")


async def test_a_model_that_leaves_is_not_searched_for(
    service: ServiceUnderTest, search: Held
) -> None:
    assert await asyncio.to_thread(search.begun.wait, LIMIT_SECONDS)
    left = await service.client.post("/v2/repository/models/tiny/unload")
    assert left.status_code == 200
    assert search.stopped.acquire(timeout=LIMIT_SECONDS)
    assert service.inside.budget.held() == {}
    search.found.set()
    await grown(service)
    assert service.inside.budget.held() == {}


async def test_a_search_that_fails_leaves_what_is_there(
    service: ServiceUnderTest, search: Held
) -> None:
    search.failure = PlanError("the search ended")
    search.found.set()
    await grown(service)
    assert is_heuristic(service)
    assert (await service.infer("tiny", inputs_for("tiny"))).status_code == 200


async def test_the_end_of_the_server_ends_the_search(
    settings: SettingsFactory, search: Held
) -> None:
    async with serving(settings(models=("tiny",), models_budget=1 << 20)):
        assert await asyncio.to_thread(search.begun.wait, LIMIT_SECONDS)
    assert search.stopped.acquire(timeout=LIMIT_SECONDS)


async def test_the_search_says_how_far_it_is_until_it_ends(
    service: ServiceUnderTest, search: Held
) -> None:
    repository = service.inside.repository
    assert await asyncio.to_thread(search.begun.wait, LIMIT_SECONDS)
    assert repository.search == ""
    progress = repository._balancer.search
    assert progress is not None
    progress("ways to stream", 1, 3)
    assert repository.search == "ways to stream, 1 of 3"
    search.found.set()
    await grown(service)
    assert repository.search is None


async def test_nothing_is_written_into_a_folder_that_somebody_removes(
    settings: SettingsFactory, search: Held, packs: Packs, tmp_path: Path
) -> None:
    shutil.copytree(packs.repository / "tiny", tmp_path / "packs" / "tiny")
    folder = tmp_path / "packs" / "tiny" / "1"
    chosen = settings(models=("tiny",), models_budget=1 << 20, repository=folder.parents[1])
    async with serving(chosen) as service:
        assert await asyncio.to_thread(search.begun.wait, LIMIT_SECONDS)
        for file in folder.iterdir():
            file.unlink()
        search.found.set()
        await grown(service)
        folder.rmdir()


def test_a_model_that_loads_says_what_is_done() -> None:
    loading = Loading()
    entry = Entry("tiny", condition=loading)
    assert entry.reason == "loading: planning"
    loading.progress("ways to stream", 1, 3)
    assert entry.reason == "loading: planning, ways to stream, 1 of 3"
    nothing: Any = None
    entry.condition = Instance("tiny", nothing, nothing, Uses())
    assert entry.reason == "loading: reading weights"
    assert (entry.state, entry.absence) == ("LOADING", "loading")


async def test_a_client_is_told_when_to_ask_for_a_model_that_loads(
    service: ServiceUnderTest, search: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    search.found.set()
    monkeypatch.setattr(service.inside.repository.models.find("tiny"), "condition", Loading())
    refused = await service.infer("tiny", inputs_for("tiny"))
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "loading: planning" in refused.json()["error"]
    monkeypatch.undo()
    assert (await service.infer("tiny", inputs_for("tiny"))).status_code == 200


async def test_a_model_comes_though_the_files_of_another_change_meanwhile(
    service: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the other it was decided that it shrinks; then it cannot be opened again."""
    reach, decided = Executor.reach, list[FleetTarget]()

    async def changed(executor: Executor, target: FleetTarget) -> None:
        decided.append(target)
        if len(decided) == 1:
            raise FilesChangedError("tiny")
        await reach(executor, target)

    monkeypatch.setattr(Executor, "reach", changed)
    assert (await service.client.post(LOAD)).status_code == 200
    assert len(decided) == 2
    assert service.worker("pair").line.idle
    await answer(service)
