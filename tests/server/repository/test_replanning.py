"""Models that come and go change the plans of others, within the budget; nothing in flight is lost."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.errors import ReadError
from models.packs.pack import Pack
from pipeline.budget.budget import Budget
from pipeline.budget.errors import RefusedError
from pipeline.budget.sharing import Activations, Sharer, share_one_by_one, share_out
from pipeline.execution.engine import Engine
from pipeline.execution.errors import DrainError
from pipeline.fitting.wanted import EnginePlanResult
from server.errors import NotServingError
from server.repository.fleet import Change, Evict, FleetTarget, Place, gaining, step
from server.repository.served_engine import Running
from server.repository.worker import Worker
from server.scheduling.sweeps import Sweep
from tests.pipeline.budget.sets import fitted, numbers
from tests.server.conftest import SettingsFactory
from tests.server.support import (
    Faults,
    Gate,
    Once,
    Packs,
    ServiceUnderTest,
    arrays,
    close,
    inputs_for,
    serving,
)

LOAD = "/v2/repository/models/pair/load"
UNLOAD = "/v2/repository/models/pair/unload"
MODELS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 40), st.integers(0, 100), st.integers(0, 30)),
    min_size=1,
    max_size=6,
)


def take_steps(target: FleetTarget, plans: dict[str, Place], budget: Budget) -> None:
    """Take all steps; ``change`` raises where one does not fit."""
    while (change := step(target, plans, budget)) is not None:
        assert isinstance(change, Change)
        budget.change(change.name, change.place.fitted.plan.memory, change.place.in_turns)
        plans[change.name] = change.place


@given(
    total=st.integers(0, 500),
    models=MODELS,
    way=st.sampled_from(["auto", "own", "shared"]),
    data=st.data(),
)
def test_models_come_and_go_step_by_step_within_the_budget(
    total: int, models: list[tuple[int, int, int, int]], way: Activations, data: st.DataObject
) -> None:
    """An admitted model finds room after the changes; ``change`` raises where a step does not fit."""
    every = {
        f"m{number}": numbers(f"m{number}", {"ring": own, "arena": shared}, ring, arena)
        for number, (own, shared, ring, arena) in enumerate(models)
    }
    budget, loaded = Budget(total), dict[str, Place]()

    def planned(names: list[str]) -> dict[str, Place]:
        sharers = [every[name] for name in names]
        shares = share_out(sharers, budget.without(loaded), way, len(loaded))
        return {
            name: Place(outcome, shares.in_turns)
            for name, outcome in zip(names, shares.outcomes, strict=True)
            if isinstance(outcome, EnginePlanResult)
        }

    for name in data.draw(st.lists(st.sampled_from(sorted(every)), max_size=12)):
        if name in loaded:
            budget.release(name)
            del loaded[name]
            take_steps(gaining(FleetTarget(planned([*loaded])), loaded), loaded, budget)
            continue
        shares = planned([*loaded, name])
        if name not in shares:
            continue
        assert shares.keys() >= loaded.keys()  # loaded models are never sent away
        others = {other: place for other, place in shares.items() if other != name}
        take_steps(FleetTarget(others, Change(name, shares[name])), loaded, budget)
        assert loaded[name] == shares[name]
        assert budget.used_bytes <= total


@given(total=st.integers(0, 500), models=MODELS, way=st.sampled_from(["auto", "own", "shared"]))
def test_a_start_serves_whom_the_list_names(
    total: int, models: list[tuple[int, int, int, int]], way: Activations
) -> None:
    """One comes after the other, beside those that are loaded and those that keep their least."""
    every = {
        f"m{number}": numbers(f"m{number}", {"ring": own, "arena": shared}, ring, arena)
        for number, (own, shared, ring, arena) in enumerate(models)
    }
    budget, loaded = Budget(total), dict[str, Place]()
    for name, each in every.items():
        others = [each for other, each in every.items() if other not in {*loaded, name}]
        waiting = [Sharer(other.name, other.least) for other in others]
        together = [*(every[other] for other in loaded), each, *waiting]
        shares = share_out(together, budget.without(loaded), way, len(loaded))
        *planned, place = [
            Place(outcome, shares.in_turns) if isinstance(outcome, EnginePlanResult) else None
            for outcome in shares.outcomes[: len(loaded) + 1]
        ]
        if place is None:
            continue
        targets = {other: plan for other, plan in zip(loaded, planned, strict=True) if plan}
        take_steps(FleetTarget(targets, Change(name, place)), loaded, budget)
        assert loaded[name] == place
    outcomes = share_one_by_one([*every.values()], Budget(total), way).outcomes
    assert [*loaded] == [
        name
        for name, outcome in zip(every, outcomes, strict=True)
        if not isinstance(outcome, Exception)
    ]


def test_a_smaller_plan_that_shares_less_gives_way_to_what_was_planned() -> None:
    """Kept, it would take no less than planned by itself, and leave the newcomer no room."""
    kept, wide = {"ring": 12, "arena": 1}, {"ring": 3, "arena": 14}
    budget = Budget(30)
    budget.reserve("a", kept, True)
    new = Place(fitted({"ring": 13, "arena": 14}), True)
    target = FleetTarget({"a": Place(fitted(wide), True)}, Change("new", new))
    take_steps(target, {"a": Place(fitted(kept), True)}, budget)
    assert budget.used_bytes == 30


PLANS = st.builds(
    lambda ring, arena, is_shared: Place(fitted({"ring": ring, "arena": arena}), is_shared),
    st.integers(1, 20),
    st.integers(0, 20),
    st.booleans(),
)


def reserved(total: int, plans: dict[str, Place]) -> Budget:
    """Return a budget of so many bytes that has memory for ``plans``."""
    budget = Budget(total)
    for name, plan in plans.items():
        budget.reserve(name, plan.holding.memory, plan.in_turns)
    return budget


@given(
    now=st.dictionaries(st.sampled_from("abcd"), PLANS),
    plans=st.dictionaries(st.sampled_from("abcd"), PLANS),
    first=st.none() | st.builds(Change, st.sampled_from("abn"), PLANS),
    free=st.integers(0, 60),
)
def test_steps_toward_any_target_fit_and_end(
    now: dict[str, Place], plans: dict[str, Place], first: Change | None, free: int
) -> None:
    """Each model changes twice at most: once without growing. What comes first is there, or refused."""
    budget = reserved(reserved(1000, now).used_bytes + free, now)
    target, changed = FleetTarget(plans, first), list[str]()
    while (change := step(target, now, budget)) is not None:
        assert isinstance(change, Change)
        try:
            budget.change(change.name, change.place.holding.memory, change.place.in_turns)
        except RefusedError:
            assert change == first
            return
        now[change.name] = change.place
        changed.append(change.name)
        assert changed.count(change.name) <= 2
    assert first is None or now[first.name].is_like(first.place)


@given(sizes=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), max_size=5))
def test_after_a_failure_models_get_back_what_they_had(sizes: list[tuple[int, int]]) -> None:
    """From any plans that fit, whichever steps had been taken, as far as each step fits."""
    before = {
        str(name): Place(fitted({"ring": then}), False) for name, (then, _) in enumerate(sizes)
    }
    now = {str(name): Place(fitted({"ring": size}), False) for name, (_, size) in enumerate(sizes)}
    budget = Budget(max(sum(then for then, _ in sizes), sum(size for _, size in sizes)) + 20)
    for name, place in now.items():
        budget.reserve(name, place.fitted.plan.memory)
    take_steps(FleetTarget(before), now, budget)
    assert all(now[name].is_like(place) for name, place in before.items())


def test_models_that_are_to_go_go_first() -> None:
    """In their order, and each of them once, whatever has become of it."""
    place = Place(fitted({"ring": 8}), False)
    target, gone = FleetTarget({"a": place}, Change("new", place), ("b", "c")), list[str]()
    budget = reserved(20, {"a": place})
    while isinstance(following := step(target, {"a": place}, budget), Evict):
        gone.append(following.name)
        target = target.without(following.name)
    assert (gone, following) == (["b", "c"], Change("new", place))


def test_the_budget_says_why_no_step_is_possible() -> None:
    budget = Budget(10)
    budget.reserve("a", {"ring": 8})
    now = {"a": Place(fitted({"ring": 8}), False)}
    with pytest.raises(RefusedError, match="'new' does not fit"):
        take_steps(FleetTarget(now, Change("new", Place(fitted({"ring": 3}), False))), now, budget)


def test_what_a_search_has_found_takes_the_place_of_a_first_plan() -> None:
    """Also where it is no larger; the same plan is not opened again."""
    large, small = {"ring": 8, "arena": 2}, {"ring": 7, "arena": 1}
    budget = Budget(10)
    budget.reserve("a", large, False)
    first, best = Place(fitted(large, heuristic=True), False), Place(fitted(small), False)

    def following(now: Place, target: Place) -> Evict | Change | None:
        return step(gaining(FleetTarget({"a": target}), {"a": now}), {"a": now}, budget)

    assert following(first, best) == Change("a", best)
    assert following(best, Place(fitted(small, heuristic=True), False)) is None
    assert following(first, Place(fitted(large), False)) is None


def test_a_model_that_left_service_meanwhile_gains_nothing() -> None:
    target = {name: Place(fitted({"ring": 8}), False) for name in ("a", "gone")}
    now = {"a": Place(fitted({"ring": 1}), False)}
    assert gaining(FleetTarget(target), now).plans == {"a": target["a"]}


@pytest.fixture
async def full(
    settings: SettingsFactory, packs: Packs, faults: Faults
) -> AsyncIterator[ServiceUnderTest]:
    """ "tiny" alone, in a budget whose rest "pair" needs, too."""
    least = packs.smallest("tiny") + packs.smallest("pair")
    async with serving(settings(models_budget=least, models=("tiny",))) as service:
        assert held(service)["tiny"] > packs.smallest("tiny")
        yield service


def held(service: ServiceUnderTest) -> dict[str, int]:
    budget = service.inside.budget
    assert budget.used_bytes <= budget.total_bytes
    return {name: sum(kinds.values()) for name, kinds in budget.held().items()}


async def right(service: ServiceUnderTest, packs: Packs, name: str = "tiny", seed: int = 0) -> None:
    inputs = inputs_for(name, seed)
    close(arrays(await service.infer(name, inputs)), packs.expected(name, inputs))


async def test_requests_wait_while_their_model_shrinks(
    full: ServiceUnderTest, faults: Faults, packs: Packs, arrivals: asyncio.Semaphore
) -> None:
    gate = Gate()
    faults.kernel = gate.hold
    working = [asyncio.create_task(right(full, packs, seed=seed)) for seed in range(6)]
    await gate.reached()
    loading = asyncio.create_task(full.inside.repository.load("pair"))
    working += [asyncio.create_task(right(full, packs, seed=seed)) for seed in range(6, 9)]
    gate.open()
    faults.kernel = lambda: None
    await asyncio.gather(loading, *working)
    assert held(full) == {name: packs.smallest(name) for name in ("tiny", "pair")}
    await right(full, packs)
    await right(full, packs, "pair")
    memory = full.worker("tiny").engine.statistics().memory
    planned = full.inside.budget.held()["tiny"]
    assert all(memory[kind] <= planned[kind] for kind in memory.keys() - {"sessions"})


async def test_what_went_lets_the_others_grow(full: ServiceUnderTest, packs: Packs) -> None:
    before = held(full)
    for _ in range(2):
        assert (await full.client.post(LOAD)).status_code == 200
        assert held(full)["tiny"] == packs.smallest("tiny")
        assert (await full.client.post(UNLOAD)).status_code == 200
        await full.inside.repository.at_rest()
        assert held(full) == before
        await right(full, packs)


def during_drain(service: ServiceUnderTest, faults: Faults, gate: Gate) -> None:
    faults.kernel = gate.hold


def during_reopening(service: ServiceUnderTest, faults: Faults, gate: Gate) -> None:
    faults.read = lambda offset, length: gate.hold()


def during_opening(service: ServiceUnderTest, faults: Faults, gate: Gate) -> None:
    def read(offset: int, length: int) -> None:
        if "pair" in service.inside.budget.held():
            gate.hold()

    faults.read = read


@pytest.mark.parametrize("when", [during_drain, during_reopening, during_opening])
async def test_a_load_whose_caller_leaves_goes_on(
    full: ServiceUnderTest,
    faults: Faults,
    packs: Packs,
    when: Callable[[ServiceUnderTest, Faults, Gate], None],
) -> None:
    gate = Gate()
    when(full, faults, gate)
    working = [asyncio.create_task(right(full, packs))] if when is during_drain else []
    if working:
        await gate.reached()
    loading = asyncio.create_task(full.inside.repository.load("pair"))
    if not working:
        await gate.reached()
    await asyncio.sleep(0)
    loading.cancel()
    gate.open()
    faults.kernel, faults.read = lambda: None, lambda offset, length: None
    with pytest.raises(asyncio.CancelledError):
        await loading
    await asyncio.gather(*working)
    await full.inside.repository.at_rest()
    await right(full, packs)
    await right(full, packs, "pair")
    assert held(full).keys() == {"tiny", "pair"}


@pytest.mark.parametrize("steps", range(0, 40, 8))
async def test_cancelled_after_any_step_of_the_loop(
    full: ServiceUnderTest, packs: Packs, steps: int
) -> None:
    loading = asyncio.create_task(full.inside.repository.load("pair"))
    for _ in range(steps):
        await asyncio.sleep(0)
    loading.cancel()
    await asyncio.wait({loading})
    await full.inside.repository.at_rest()
    assert held(full).keys() == ({"tiny", "pair"} if steps else {"tiny"})
    await right(full, packs)


@pytest.mark.parametrize("which", ["tiny", "pair"])
async def test_a_read_that_fails_puts_the_old_state_back(
    full: ServiceUnderTest, faults: Faults, packs: Packs, which: str
) -> None:
    """The first read of the model that shrinks, or of the one that comes."""
    before, fail = held(full), Once(ReadError("weights.bin: Input/output error"))

    def read(offset: int, length: int) -> None:
        if which == "tiny" or which in full.inside.budget.held():
            fail(offset, length)

    faults.read = read
    answer = await full.client.post(LOAD)
    assert answer.status_code == 503, answer.text
    assert held(full) == before
    assert full.worker("tiny").fault is None
    await right(full, packs)


async def test_a_model_that_cannot_be_opened_again_says_so(
    full: ServiceUnderTest, faults: Faults, packs: Packs
) -> None:
    def read(offset: int, length: int) -> None:
        raise ReadError("weights.bin: Input/output error")

    faults.read = read
    waiting = asyncio.create_task(full.inside.repository.load("pair"))
    with pytest.raises(ReadError):
        await waiting
    refused = await full.infer("tiny", inputs_for("tiny"))
    assert refused.status_code == 503
    assert "could not be opened again" in refused.text
    assert held(full) == {}  # neither fits beside what is not used any more
    assert full.inside.repository.entries()[0].worker is None
    index = (await full.client.post("/v2/repository/index")).json()
    assert {model["name"]: model["state"] for model in index}["tiny"] == "UNAVAILABLE"
    faults.read = lambda offset, length: None
    for name in ("tiny", "pair"):
        await full.inside.repository.load(name)
        await right(full, packs, name)


async def test_a_read_that_never_ends_while_a_model_shrinks_keeps_its_memory(
    full: ServiceUnderTest, packs: Packs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(pack: Pack, *arguments: Any, **options: Any) -> Engine:
        raise DrainError("span 0 has not been read")

    monkeypatch.setattr("server.repository.environment.open_answering", stuck)
    with pytest.raises(DrainError):
        await full.inside.repository.load("pair")
    monkeypatch.undo()
    assert held(full) == {"tiny": packs.smallest("tiny")}  # the disk may still write there
    assert (await full.infer("tiny", inputs_for("tiny"))).status_code == 503
    with pytest.raises(NotServingError, match="restart"):
        await full.inside.repository.load("tiny")
    await full.inside.repository.load("pair")
    await right(full, packs, "pair")


async def test_the_end_comes_while_models_grow(
    settings: SettingsFactory, packs: Packs, faults: Faults
) -> None:
    """No task and no thread is left (conftest looks), whatever growth is doing."""
    least = packs.smallest("tiny") + packs.smallest("pair")
    for steps in (0, 1, 5):
        async with serving(settings(models_budget=least, models=("tiny", "pair"))) as service:
            await service.client.post(UNLOAD)
            for _ in range(steps):
                await asyncio.sleep(0)
        assert service.inside.budget.held() == {}


async def test_models_in_turns_answer_alternately_in_the_memory_of_one(
    settings: SettingsFactory, packs: Packs, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = Budget(1 << 40)
    for name in ("tiny", "twin"):
        plan = packs.least(name)
        budget.reserve(name, plan, in_turns=True)
    alone = max(packs.least(name)["arena"] for name in ("tiny", "twin"))
    total = budget.used_bytes
    assert total + alone // 2 < sum(packs.smallest(name) for name in ("tiny", "twin"))
    launched: list[str] = []
    running, compute = threading.local(), Worker._compute

    def computing(worker: Worker, batch: Sweep) -> None:
        running.name = worker.served.name
        compute(worker, batch)

    monkeypatch.setattr(Worker, "_compute", computing)
    faults.kernel = lambda: launched.append(running.name)
    async with serving(settings(models_budget=total, models=("tiny", "twin"))) as service:
        for _ in range(3):
            requests = (
                right(service, packs, name, seed) for seed in range(6) for name in ("tiny", "twin")
            )
            await asyncio.gather(*requests)
        engines = [service.worker(name).engine for name in ("tiny", "twin")]
        # No kernel of one model ran between the first and the last of a sweep of the other.
        steps = {
            engine.program.pack.name: len(plan.steps)
            for engine in engines
            for plan in engine.plan.partitions
        }
        runs = [(name, len(list(run))) for name, run in groupby(launched)]
        assert all(count % steps[name] == 0 for name, count in runs)
        assert len(runs) > 2
        assert all(engine.takes_turns for engine in engines)
        found = await service.metrics()
        used = found["layerstream_budget_used_bytes", frozenset()]
        assert used == service.inside.budget.used_bytes
        shown = {
            dict(labels)["kind"]: value
            for (name, labels), value in found.items()
            if name == "layerstream_memory_bytes" and ("model", "(shared)") in labels
        }
        assert shown["arena"] == max(engine.plan.arena_bytes for engine in engines)
        assert not any(
            name == "layerstream_memory_bytes"
            and ("kind", "arena") in labels
            and ("model", "(shared)") not in labels
            for name, labels in found
        )
    with pytest.raises(Exception, match="--activations shared"):
        async with serving(
            settings(
                models_budget=total, models=("tiny", "twin"), activations="own", exit_on_error=True
            )
        ):
            pass


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", ["auto", "own"])
async def test_models_come_and_go_under_requests(
    settings: SettingsFactory, packs: Packs, way: Activations, seed: int
) -> None:
    """Loads, unloads and requests at once, some cancelled: answers are right, or say what is not there."""
    dice, names = random.Random(seed), ("tiny", "twin", "pair")
    total = packs.smallest("tiny") + packs.smallest("twin") + dice.randrange(200 << 10)
    answered: list[int] = []
    async with serving(
        settings(models_budget=total, models=("tiny",), activations=way, queue_limit=64)
    ) as service:

        async def one(name: str, what: str, number: int) -> None:
            if what != "infer":
                path = f"/v2/repository/models/{name}/{what}"
                answer = await service.client.post(path)
                assert answer.status_code in ((200, 409) if what == "load" else (200, 404))
                return
            inputs = inputs_for(name, number)
            answer = await service.infer(name, inputs)
            if answer.status_code == 200:
                close(arrays(answer), packs.expected(name, inputs))
                answered.append(number)
            else:
                assert answer.status_code in (404, 409, 503), answer.text
            held(service)

        tasks = []
        for number in range(40):
            what = dice.choice(("infer", "infer", "infer", "load", "unload"))
            tasks.append(asyncio.create_task(one(dice.choice(names), what, number)))
            if dice.random() < 0.1:
                dice.choice(tasks).cancel()
            if dice.random() < 0.5:
                await asyncio.sleep(0)
            if number % 10 == 9:
                await asyncio.wait(tasks[-3:])
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            assert found is None or isinstance(found, asyncio.CancelledError), found
        for name in names:
            await service.client.post(f"/v2/repository/models/{name}/unload")
        assert held(service) == {}
        for name in ("tiny", "twin"):
            assert (await service.client.post(LOAD.replace("pair", name))).status_code == 200
            await right(service, packs, name)
    assert answered


async def test_an_unload_that_is_cancelled_gives_the_memory_back(
    full: ServiceUnderTest, faults: Faults, packs: Packs
) -> None:
    gate = Gate()
    faults.kernel = gate.hold
    working = asyncio.create_task(right(full, packs))
    await gate.reached()
    unloading = asyncio.create_task(full.inside.repository.unload("tiny"))
    await asyncio.sleep(0)
    for _ in range(3):  # as often as a client likes
        unloading.cancel()
        await asyncio.sleep(0)
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await unloading
    await working
    await full.inside.repository.at_rest()
    assert held(full) == {}
    faults.kernel = lambda: None
    assert (await full.client.post(LOAD)).status_code == 200


async def test_a_load_that_fails_after_its_caller_has_left_leaves_all_as_it_was(
    full: ServiceUnderTest, faults: Faults, packs: Packs, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says why."""
    before, gate = held(full), Gate()

    def read(offset: int, length: int) -> None:
        if "pair" in full.inside.budget.held():
            gate.hold()
            raise ReadError("weights.bin: Input/output error")

    faults.read = read
    loading = asyncio.create_task(full.inside.repository.load("pair"))
    await gate.reached()
    for _ in range(3):
        loading.cancel()
        await asyncio.sleep(0)
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await loading
    await full.inside.repository.at_rest()
    assert "Input/output error" in caplog.text
    assert held(full) == before
    assert "engine-pair" not in {thread.name for thread in threading.enumerate()}
    await right(full, packs)


async def test_models_that_nobody_knows_have_no_generations(full: ServiceUnderTest) -> None:
    repository = full.inside.repository
    for name in ("a", "b"):
        assert (await full.client.post(LOAD.replace("pair", name))).status_code == 404
        assert (await full.client.post(UNLOAD.replace("pair", name))).status_code == 404
    assert repository._reconciler.generations.keys() == {"tiny"}


async def test_loads_that_wait_are_one(full: ServiceUnderTest, packs: Packs) -> None:
    repository = full.inside.repository
    unloading = asyncio.create_task(repository.unload("tiny"))
    loads = [asyncio.create_task(repository.load("tiny")) for _ in range(3)]
    worker = full.worker("tiny")
    await unloading
    entries = await asyncio.gather(*loads)
    assert {id(entry) for entry in entries} == {id(repository.models["tiny"])}
    assert full.worker("tiny") is not worker
    await right(full, packs)


async def test_whoever_waits_for_a_model_to_open_again_may_go(
    full: ServiceUnderTest, faults: Faults, packs: Packs
) -> None:
    """All tasks are cancelled when a loop ends; the thread answers what it accepted."""
    worker, gate = full.worker("tiny"), Gate()

    def make() -> Running:
        gate.hold()
        raise ReadError("weights.bin: Input/output error")

    entry = full.inside.repository.models["tiny"]
    assert entry.prepared is not None
    assert entry.place is not None
    back = partial(full.inside.repository._opener.reopen, "tiny", entry.prepared, entry.place)
    jobs = {*asyncio.all_tasks()}
    reopening = asyncio.create_task(worker.reopen(make, back))
    await gate.reached()
    working = asyncio.create_task(right(full, packs))
    for task in {*asyncio.all_tasks()} - jobs - {working}:
        task.cancel()
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await reopening
    await asyncio.wait_for(working, 20)
