"""A model that was unloaded leaves a few words, and nothing of its pack."""

import gc
import importlib.util
import weakref
from typing import Any

import pytest

from server import service as service_module
from server.operation.process import IMPORTED_LATE
from server.repository import environment
from tests.server.cancellation.held import turns
from tests.server.support import ServiceUnderTest, inputs_for


async def test_nothing_of_a_pack_is_left(service: ServiceUnderTest) -> None:
    assert (await service.infer("pair", inputs_for("pair"))).status_code == 200
    entry = service.inside.repository.models.find("pair")
    pack = entry.serving().prepared.pack
    left = weakref.ref(pack.manifest)
    version = pack.version
    del pack
    await service.inside.repository.unload("pair")
    await service.inside.repository.close()
    async for _ in turns():
        gc.collect()
        if left() is None:  # the thread that closed the engine keeps it until its last line is run
            break
    assert left() is None
    assert (entry.version, entry.pack) == (version, None)
    assert entry.weight_bytes > 0


async def test_the_base_counts_what_planning_takes_and_planners_forget_before_models_load(
    service: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    repository = service.inside.repository
    set_aside = repository.set_aside

    async def planned() -> None:
        await set_aside()
        order.append("planned")

    monkeypatch.setattr(repository, "set_aside", planned)
    monkeypatch.setattr(service_module, "give_back", lambda: order.append("forgotten"))
    monkeypatch.setattr(service.inside.metrics, "models_follow", lambda: order.append("base"))
    await service.inside._reserve_request_memory()
    assert order == ["planned", "base", "forgotten"]


@pytest.mark.parametrize("name", IMPORTED_LATE)
def test_libraries_still_have_what_they_import_late(name: str) -> None:
    assert importlib.util.find_spec(name) is not None


def test_all_objects_are_looked_at_only_where_something_went(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the start of many models takes the square of their number."""
    done: list[str] = []
    monkeypatch.setattr(environment, "give_back", lambda: done.append("all"))
    monkeypatch.setattr(environment, "trim_heap", lambda: done.append("heap"))
    nothing: Any = None
    outside = environment.RepositoryEnvironment(nothing, nothing, nothing)
    outside.give_back(0.1)
    outside.give_back(5.0)
    outside.trim_heap()
    outside.give_back(0.1)
    outside.give_back(0.1)
    assert done == ["heap", "all", "heap", "all", "heap"]
