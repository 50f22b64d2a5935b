"""One budget over all models: what fits is served right, what does not is refused with figures."""

import asyncio
import errno
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.atomic_folders import locked_folder
from models.packs.folders import versions
from models.packs.pack import open_pack
from models.sizes import format_least, parse_size
from pipeline.budget.budget import Budget, refusal
from pipeline.budget.errors import RefusedError
from pipeline.budget.request_needs import Need
from pipeline.budget.sharing import Sharer, share_out, sharer
from pipeline.devices.base import Device
from pipeline.fitting.wanted import EnginePlanResult
from pipeline.planning.smallest import smallest_plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from server.errors import NotFoundError
from server.operation.starting import StartupError
from tests.examples import over
from tests.pipeline.budget.sets import numbers
from tests.server.conftest import SettingsFactory
from tests.server.support import (
    REQUEST_MEMORY,
    Packs,
    ServiceUnderTest,
    arrays,
    close,
    error,
    inputs_for,
    serving,
)

TWO = ("tiny", "twin")
ROOM = 16 << 10
LOAD = "/v2/repository/models/{}/load"
UNLOAD = "/v2/repository/models/{}/unload"


@pytest.fixture(scope="session")
def budget(packs: Packs) -> int:
    """Holds the rings of two models, the weights of neither, and no third model."""
    total = sum(packs.smallest(name) for name in TWO) + ROOM
    assert all(packs.weights(name) > total for name in TWO)
    assert packs.smallest("pair") > ROOM
    return total


async def all_right(service: ServiceUnderTest, packs: Packs, count: int) -> None:
    """``count`` interleaved requests, several at a time, each with an input of its own."""
    limit = asyncio.Semaphore(8)

    async def one(number: int) -> None:
        name = TWO[number % 2]
        inputs = inputs_for(name, number)
        async with limit:
            response = await service.infer(name, inputs)
        close(arrays(response), packs.expected(name, inputs))

    await asyncio.gather(*(one(number) for number in range(count)))


async def test_two_models_in_a_budget_that_holds_the_weights_of_neither(
    settings: SettingsFactory, packs: Packs, budget: int
) -> None:
    async with serving(settings(models_budget=budget, models=TWO)) as service:
        await all_right(service, packs, 16)
        total = budget + REQUEST_MEMORY
        assert await service.metric("layerstream_budget_bytes") == total
        assert await service.metric("layerstream_request_memory_bytes") == REQUEST_MEMORY
        used = await service.metric("layerstream_budget_used_bytes")
        assert used == service.inside.budget.used_bytes <= total
        for name in TWO:
            ok = await service.metric("layerstream_requests_total", model=name, outcome="ok")
            assert ok == 8
            # What the engines hold is no more than what was set aside for them.
            held = service.inside.budget.held()[name]
            memory = service.worker(name).engine.statistics().memory
            assert memory.keys() == held.keys()
            for kind in memory.keys() - {"sessions"}:
                assert memory[kind] <= held[kind]


def figures(message: str) -> tuple[int, int]:
    found = re.search(r"needs .*?\((\d+) bytes\), free .*?\((\d+) bytes\)", message)
    assert found
    return int(found[1]), int(found[2])


async def refused(service: ServiceUnderTest, packs: Packs) -> None:
    """Check every way to ask for the third model: too little is free when the others have their least."""
    free = ROOM
    answers = [
        await service.client.post(LOAD.format("pair")),
        await service.client.get("/v2/models/pair"),
        await service.client.get("/v2/models/pair/ready"),
        await service.infer("pair", inputs_for("pair")),
    ]
    for answer in answers:
        message = error(answer, 409, "'pair'", format_least(packs.smallest("pair")))
        assert figures(message) == (packs.smallest("pair"), free)
    index = {entry["name"]: entry for entry in (await service.client.post(INDEX)).json()}
    assert index["pair"]["state"] == "UNAVAILABLE"
    assert figures(index["pair"]["reason"]) == (packs.smallest("pair"), free)


INDEX = "/v2/repository/index"


async def test_a_third_model_is_refused_at_the_start_and_by_request(
    settings: SettingsFactory, packs: Packs, budget: int
) -> None:
    async with serving(settings(models_budget=budget, models=(*TWO, "pair"))) as service:
        name = "layerstream_model_refusals_total"
        assert await service.metric(name, model="pair") == 1
        assert service.inside.describe().startswith("serving 2 of 3 models (tiny, twin) in ")
        await refused(service, packs)
        assert await service.metric(name, model="pair") == 2
        assert await service.metric("layerstream_model_ready", model="pair") == 0
        assert (await service.client.get("/v2/health/ready")).status_code == 200
        await all_right(service, packs, 10)


async def test_strict_readiness_is_that_of_all_models_but_those_unloaded_by_request(
    settings: SettingsFactory, packs: Packs, budget: int
) -> None:
    """One that is evicted is ready: the next request loads it."""
    models = {"models_budget": budget, "models": (*TWO, "pair"), "strict_readiness": True}
    async with serving(settings(**models)) as service:
        response = await service.client.get("/v2/health/ready")
        assert response.status_code == 503
        assert "model 'pair' does not fit" in response.json()["reason"]
        assert (await service.client.post(UNLOAD.format("pair"))).status_code == 200
        assert (await service.client.get("/v2/health/ready")).status_code == 200
    async with serving(settings(**models, budget_policy="evict-lru")) as service:
        assert "pair" not in service.inside.budget.held()
        assert (await service.client.get("/v2/health/ready")).status_code == 200


async def test_a_refusal_while_others_work_changes_nothing_for_them(
    settings: SettingsFactory, packs: Packs, budget: int
) -> None:
    async with serving(settings(models_budget=budget, models=TWO)) as service:
        before = service.inside.budget.held()
        error(await service.client.get("/v2/models/pair"), 404, "'pair'")
        work = asyncio.create_task(all_right(service, packs, 20))
        for _ in range(5):
            error(await service.client.post(LOAD.format("pair")), 409)
        await work
        assert service.inside.budget.held() == before


async def test_unload_frees_and_load_takes_again(
    settings: SettingsFactory, packs: Packs, budget: int
) -> None:
    async with serving(settings(models_budget=budget, models=TWO)) as service:
        client = service.client
        for _ in range(2):
            error(await client.post(LOAD.format("pair")), 409)
            assert (await client.post(UNLOAD.format("twin"))).json()["state"] == "UNAVAILABLE"
            assert service.inside.budget.held().keys() == {"tiny"}
            error(await service.infer("twin", inputs_for("twin")), 404, "'twin'", "unloaded")
            assert await service.metric("layerstream_model_ready", model="twin") == 0
            memory = {"model": "twin", "kind": "ring"}
            assert await service.metric("layerstream_memory_bytes", **memory) is None

            assert (await client.post(LOAD.format("pair"))).json()["state"] == "READY"
            inputs = inputs_for("pair")
            close(arrays(await service.infer("pair", inputs)), packs.expected("pair", inputs))
            error(await client.post(LOAD.format("twin")), 409)

            assert (await client.post(UNLOAD.format("pair"))).status_code == 200
            assert (await client.post(LOAD.format("twin"))).json()["state"] == "READY"
            await all_right(service, packs, 4)


@pytest.mark.parametrize(
    "failure",
    [OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), MemoryError()],
    ids=["mmap", "heap"],
)
async def test_memory_that_cannot_be_allocated(
    service: ServiceUnderTest, packs: Packs, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def allocate(use: str, n_bytes: int, slots: int = 1) -> None:
        raise failure

    await service.client.post(UNLOAD.format("tiny"))
    held, clients = service.inside.budget.held(), service.inside.pool.statistics().clients
    with monkeypatch.context() as patch:
        patch.setattr(Device, "allocate", staticmethod(allocate))
        for _ in range(2):
            error(await service.client.post(LOAD.format("tiny")), 503, "model 'tiny'", "allocate")
    error(await service.infer("tiny", inputs_for("tiny")), 503, "model 'tiny'", "allocate")
    assert service.inside.budget.held() == held
    assert service.inside.pool.statistics().clients == clients
    assert (await service.client.post(LOAD.format("tiny"))).status_code == 200
    inputs = inputs_for("tiny")
    close(arrays(await service.infer("tiny", inputs)), packs.expected("tiny", inputs))


async def test_load_and_unload_twice_are_no_errors(service: ServiceUnderTest) -> None:
    held = service.inside.budget.held()
    for _ in range(2):
        assert (await service.client.post(LOAD.format("tiny"))).status_code == 200
    assert service.inside.budget.held() == held
    for _ in range(2):
        assert (await service.client.post(UNLOAD.format("tiny"))).status_code == 200
    assert service.inside.budget.held().keys() == {"pair"}


async def test_loads_at_once_load_once(settings: SettingsFactory, packs: Packs) -> None:
    async with serving(settings()) as service:
        await service.client.post(UNLOAD.format("tiny"))
        answers = await asyncio.gather(
            *(service.client.post(LOAD.format("tiny")) for _ in range(5))
        )
        assert [answer.status_code for answer in answers] == [200] * 5
        assert service.inside.budget.used_bytes <= service.inside.budget.total_bytes
        inputs = inputs_for("tiny")
        close(arrays(await service.infer("tiny", inputs)), packs.expected("tiny", inputs))


async def test_the_only_model_does_not_fit(
    settings: SettingsFactory, packs: Packs, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StartupError) as caught:
        async with serving(settings(models_budget=packs.smallest("tiny") - 1, models=("tiny",))):
            pass
    assert figures(str(caught.value)) == (packs.smallest("tiny"), packs.smallest("tiny") - 1)
    assert "does not fit" not in caplog.text  # it is told once, by the error that ends the start
    assert not caught.value.may_pass


def enough(message: str) -> int:
    found = re.search(r"a budget of ([\d.]+ \w+) is enough", message)
    assert found, message
    return parse_size(found[1])


@pytest.mark.parametrize(("few", "chosen"), [(2300 << 10, 2000 << 10), (2200 << 10, None)])
async def test_a_refusal_says_which_budget_is_enough_for_all(
    settings: SettingsFactory, few: int, chosen: int | None
) -> None:
    """Typed in it is, and hardly more than that; the memory of requests may grow with the budget."""
    models = {"models": (*TWO, "pair"), "request_memory": chosen}
    async with serving(settings(budget=few, **models)) as service:
        entries = service.inside.repository.entries()
        (said,) = {enough(entry.reason) for entry in entries if not entry.serves}
        assert any(entry.serves for entry in entries)
    async with serving(settings(budget=said, exit_on_error=True, **models)) as service:
        assert all(entry.serves for entry in service.inside.repository.entries())
    with pytest.raises(StartupError, match="does not fit"):
        async with serving(settings(budget=int(said * 0.9), exit_on_error=True, **models)):
            pass


async def test_a_model_that_no_request_reaches_takes_no_place(
    settings: SettingsFactory, packs: Packs
) -> None:
    """No budget serves it: neither is memory kept for it, nor does a refusal count it."""
    needs = {
        name: Need.of(open_pack(packs.repository / name).manifest) for name in ("tiny", "pair")
    }
    most, other = sorted(needs, key=lambda name: -needs[name].tight_bytes)
    requests = needs[most].tight_bytes - 1
    alone = packs.smallest(other) + requests
    models = {"models": (most, other), "request_memory": requests}
    async with serving(settings(budget=alone, **models)) as service:
        entries = service.inside.repository.entries()
        assert {entry.name: entry.serves for entry in entries} == {most: False, other: True}
    with pytest.raises(StartupError) as caught:
        async with serving(settings(budget=alone - 1, **models)):
            pass
    assert alone <= enough(str(caught.value)) <= alone + (256 << 10)


async def test_a_model_takes_what_others_hold_beyond_their_need(
    settings: SettingsFactory, packs: Packs
) -> None:
    """A model comes while another holds all there is: the order of loading does not matter."""
    least = packs.smallest("tiny") + packs.smallest("pair")
    async with serving(settings(models_budget=least, models=("tiny",))) as service:
        assert (await service.client.post(LOAD.format("pair"))).status_code == 200
        held = service.inside.budget.held()
        assert {name: sum(kinds.values()) for name, kinds in held.items()} == {
            "tiny": packs.smallest("tiny"),
            "pair": packs.smallest("pair"),
        }
        for name in ("tiny", "pair"):
            inputs = inputs_for(name)
            close(arrays(await service.infer(name, inputs)), packs.expected(name, inputs))


def test_a_refusal_breaks_the_need_down() -> None:
    memory = {"ring": 3 << 20, "resident": 1 << 20, "arena": 9 << 20, "scratch": 0, "io": 5 << 10}
    message = str(refusal("m", memory, Budget(1 << 20), sum(memory.values())))
    parts = "9.0 MiB for activations, 4.0 MiB for weights, 5.0 KiB for inputs and outputs; a budget"
    assert parts in message
    assert figures(message) == (sum(memory.values()), 1 << 20)
    assert enough(message) >= sum(memory.values())


@over("total", [4 << 20, (12 << 20) + 333, 2_400_000, 700 << 10])
@over("second", [2 << 20, 1_234_567, 31 << 20])
def test_budget_and_excess_are_the_budget_that_is_enough(total: int, second: int) -> None:
    """Of two models whose sum exceeds it; each figure is rounded to a tenth of its unit."""
    budget = Budget(total)
    budget.set_aside(100_000, ())
    first = budget.free_bytes - 54_321
    every = [numbers(name, {"ring": n}) for name, n in (("one", first), ("other", second))]
    with pytest.raises(RefusedError) as caught:
        share_out(every, budget, "own").plans()
    message = str(caught.value)
    found = re.search(r"\(excess ([\d.]+ \w+)\)", message)
    assert found, message
    excess = parse_size(found[1])
    unit = 1 << (20 if found[1].endswith("MiB") else 10)
    assert abs(total + excess - enough(message)) <= unit / 20
    assert enough(message) >= 100_000 + first + second


def test_every_kind_of_memory_has_words(program: Program) -> None:
    plan = smallest_plan(program, ARCHITECTURES["auto"])
    message = str(refusal("m", dict.fromkeys(plan.memory, 1 << 20), Budget(1), 7 << 20))
    assert not any(f"for {kind}" in message for kind in plan.memory)


async def test_exit_on_error(settings: SettingsFactory, budget: int) -> None:
    with pytest.raises(StartupError, match="'pair'"):
        async with serving(
            settings(models_budget=budget, models=(*TWO, "pair"), exit_on_error=True)
        ):
            pass


async def test_the_smallest_budget_is_enough(settings: SettingsFactory, packs: Packs) -> None:
    inputs = inputs_for("tiny")
    async with serving(settings(models_budget=packs.smallest("tiny"), models=("tiny",))) as service:
        close(arrays(await service.infer("tiny", inputs)), packs.expected("tiny", inputs))
        assert service.inside.budget.free_bytes == 0


async def test_a_repository_without_packs(settings: SettingsFactory, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / ".hidden" / "1").mkdir(parents=True)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(StartupError, match="no packs"):
        async with serving(settings(repository=tmp_path, models=(), model_control="none")):
            pass


async def test_the_start_clears_what_killed_compilations_left(
    settings: SettingsFactory, packs: Packs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(packs.repository / "tiny", tmp_path / "tiny")
    left = tmp_path / "tiny" / ".compiling-2-4711-00000000"
    (left / "inner").mkdir(parents=True)
    with locked_folder(tmp_path / "tiny", "3") as building:
        async with serving(settings(repository=tmp_path, models=())):
            assert f"{left}: removed" in caplog.text
            names = sorted(path.name for path in (tmp_path / "tiny").iterdir())
            assert names == [building.name, "1"]


async def test_a_folder_that_nobody_may_look_into(
    settings: SettingsFactory, packs: Packs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk of its own has lost+found, which is root's."""
    shutil.copytree(packs.repository / "tiny", tmp_path / "tiny")
    (tmp_path / "lost+found").mkdir()

    def closed(folder: Path) -> list[Path]:
        if folder.name == "lost+found":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        return versions(folder)

    monkeypatch.setattr("server.repository.on_disk.versions", closed)
    async with serving(settings(repository=tmp_path, models=())) as service:
        assert [entry["name"] for entry in (await service.client.post(INDEX)).json()] == ["tiny"]


async def test_no_repository(settings: SettingsFactory, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such folder"):
        async with serving(settings(repository=tmp_path / "none", models=())):
            pass


async def test_a_damaged_pack_beside_a_sound_one(
    settings: SettingsFactory, packs: Packs, tmp_path: Path
) -> None:
    (tmp_path / "tiny").symlink_to(packs.repository / "tiny")
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "manifest.json").write_text("{}")
    (tmp_path / "empty" / "1").mkdir(parents=True)
    async with serving(settings(repository=tmp_path, models=())) as service:
        error(await service.client.get("/v2/models/broken"), 503, "'broken'", "manifest.json")
        error(await service.client.post(LOAD.format("broken")), 503, "manifest.json")
        error(await service.client.get("/v2/models/empty/ready"), 503, "'empty'")
        assert (await service.client.get("/v2/models/tiny/ready")).status_code == 200
        assert service.inside.budget.held().keys() == {"tiny"}


async def test_not_ready_once_nothing_serves(service: ServiceUnderTest) -> None:
    for name in ("tiny", "pair"):
        await service.client.post(UNLOAD.format(name))
    response = await service.client.get("/v2/health/ready")
    said = response.json()
    assert (response.status_code, said["ready"]) == (503, False)
    assert "'tiny': unloaded" in said["reason"]
    assert (await service.client.get("/v2/health/live")).status_code == 200


async def test_repository_index(service: ServiceUnderTest) -> None:
    await service.client.post(UNLOAD.format("pair"))
    entries = (await service.client.post(INDEX)).json()
    assert {entry["name"]: entry["state"] for entry in entries} == {
        "pair": "UNAVAILABLE",
        "tiny": "READY",
        "twin": "UNAVAILABLE",
    }
    assert all(entry["reason"] for entry in entries if entry["state"] != "READY")


@pytest.fixture(scope="session")
def program(packs: Packs) -> Program:
    return Program.as_compiled(open_pack(packs.repository / "tiny"))


NAMES = st.sampled_from("abcd")
STEPS = st.lists(
    st.tuples(st.just("reserve"), NAMES, st.integers(0, 1000))
    | st.tuples(st.just("release"), NAMES, st.just(0)),
    max_size=30,
)


@given(total=st.integers(1, 2000), steps=STEPS)
def test_the_ledger_never_exceeds_the_budget(total: int, steps: list[tuple[str, str, int]]) -> None:
    budget = Budget(total)
    held: dict[str, int] = {}
    for step, name, size in steps:
        if step == "release":
            budget.release(name)
            held.pop(name, None)
        elif size > total - sum(held.values()):
            with pytest.raises(RefusedError) as caught:
                budget.reserve(name, {"ring": size})
            assert figures(str(caught.value)) == (size, total - sum(held.values()))
        else:
            budget.reserve(name, {"ring": size})
            held[name] = size
        assert {name: sum(kinds.values()) for name, kinds in budget.held().items()} == held
        assert 0 <= budget.used_bytes == sum(held.values()) <= total
        assert budget.free_bytes == total - budget.used_bytes


@pytest.mark.parametrize("read", [Budget.held, lambda budget: budget.used_bytes])
def test_the_ledger_is_read_while_a_thread_loads(read: Callable[[Budget], object]) -> None:
    """Between any two steps of the interpreter another model comes or goes."""
    budget = Budget(100)
    budget.reserve("stays", {"ring": 10})
    steps = 0

    def step(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += 1
        if "comes" in budget.held():
            budget.release("comes")
        else:
            budget.reserve("comes", {"ring": 7})
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        seen = read(budget)
    finally:
        sys.settrace(before)
    assert steps > 10
    assert seen in (10, 17, {"stays": {"ring": 10}}, {"stays": {"ring": 10}, "comes": {"ring": 7}})


@given(
    total=st.integers(1, 4 << 20),
    share=st.integers(0, 4 << 20),
    architecture=st.sampled_from(
        sorted(name for name, item in ARCHITECTURES.items() if item.tuned != "search")
    ),
)
def test_a_plan_that_fits_fits(program: Program, total: int, share: int, architecture: str) -> None:
    """A model alone gets all there is; beside another one the even part of what both leave."""
    chosen = ARCHITECTURES[architecture]
    smallest = smallest_plan(program, chosen).total_bytes
    budget = Budget(total)
    other = Sharer("other", {"ring": share})
    shares = share_out([sharer("m", program, chosen), other], budget, "own")
    outcome = shares.outcomes[0]
    if smallest > total:
        assert isinstance(outcome, RefusedError)
        return
    assert isinstance(outcome, EnginePlanResult)
    rest = total - smallest - share
    extra = rest // 2 if rest >= 0 else total - smallest
    assert smallest <= outcome.plan.total_bytes <= max(smallest, smallest + extra)
    assert budget.used_bytes <= total
