"""Models give memory back while the system lacks it, and grow again; nothing in flight is lost."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.errors import ReadError
from pipeline.budget.budget import Budget
from pipeline.budget.sharing import Activations, Sharer
from server.repository.changes import Change as Desired
from server.repository.changes import Relieve, Unload
from server.repository.fleet import Evict, Fleet, FleetTarget, Member, Place, step
from server.repository.planning_threads import PlanningThreads
from server.repository.reconciling import Reconciler
from tests.pipeline.budget.sets import fitted, numbers
from tests.server.conftest import SettingsFactory
from tests.server.repository.test_eviction import crowding, loaded, right
from tests.server.support import Faults, Gate, Once, Packs, ServiceUnderTest, error, serving, until

# What is decided; pure.


def member(request: Sharer, plan: Place, **changes: Any) -> Member:
    return Member(request, 0.0, plan, **changes)


def fleet_of(total: int, ceiling: int, activations: Activations, **members: Member) -> Fleet:
    """Return these members, model with its plan, in a budget whose ceiling was lowered."""
    budget = Budget(total)
    for name, model in members.items():
        budget.reserve(name, model.place.fitted.plan.memory, model.place.in_turns)
    budget.ceiling_bytes = ceiling
    return Fleet(budget, members, activations)


SIZES = st.tuples(st.integers(1, 40), st.integers(0, 40), st.integers(0, 100), st.integers(0, 30))


@given(
    st.lists(SIZES, min_size=1, max_size=5),
    st.lists(st.booleans(), min_size=5, max_size=5),
    st.integers(0, 800),
    st.sampled_from(["auto", "own"]),
)
def test_smaller_plans_meet_the_ceiling_or_are_minimal(
    models: list[tuple[int, int, int, int]],
    stay: list[bool],
    ceiling: int,
    activations: Activations,
) -> None:
    """Each step gives memory back, and no model gets a larger plan than it had."""
    members = {}
    for index, ((private, shared, ring, arena), stays) in enumerate(
        zip(models, stay, strict=False)
    ):
        request = numbers(f"m{index}", {"ring": private, "arena": shared}, ring, arena)
        request = replace(request, at_once=request.within)
        assert request.within is not None
        members[f"m{index}"] = member(request, Place(request.within(1000), False), stays=stays)
    fleet = fleet_of(2000, ceiling, activations, **members)
    budget, now = fleet.budget, fleet.places
    before = {name: plan.fitted.plan.total_bytes for name, plan in now.items()}
    target, used = fleet.smaller(), budget.used_bytes
    while budget.free_bytes < 0 and (change := step(target, now, budget)) is not None:
        assert not isinstance(change, Evict)
        budget.change(change.name, change.place.fitted.plan.memory, change.place.in_turns)
        now[change.name] = change.place
        assert budget.used_bytes <= used
        used = budget.used_bytes
        assert change.place.fitted.plan.total_bytes <= before[change.name]
        target = target.without(change.name)
    if budget.free_bytes < 0:
        for name, model in members.items():
            is_minimum = now[name].fitted.plan.memory == model.sharer.least
            assert model.stays or is_minimum, f"{name} could give more"


def rated(sizes: str, ceiling: int) -> Fleet:
    """Return models in the order of their use, oldest first: 'i' idle, 'u' used, 'p' pinned."""
    members = {
        f"m{index}": Member(
            numbers(f"m{index}", {"ring": 10}),
            float(index),
            Place(fitted({"ring": 10}), False),
            is_used=kind == "u",
            may_go=kind != "p",
        )
        for index, kind in enumerate(sizes)
    }
    return fleet_of(100, ceiling, "own", **members)


@pytest.mark.parametrize(
    ("sizes", "ceiling", "idle", "every"),
    [
        ("iii", 30, "", ""),
        ("iii", 29, "0", "0"),
        ("uii", 15, "12", "12"),
        ("upi", 15, "2", "20"),
        ("uu", 5, "", "01"),
        ("pp", 0, "", ""),
    ],
)
def test_no_more_models_go_than_the_ceiling_needs(
    sizes: str, ceiling: int, idle: str, every: str
) -> None:
    """Idle ones first, those that were unused for longest before others; none that is pinned."""
    fleet = rated(sizes, ceiling)
    assert fleet.fewer(is_used=False) == FleetTarget(gone=[f"m{index}" for index in idle])
    assert fleet.fewer() == FleetTarget(gone=[f"m{index}" for index in every])


async def test_memory_is_released_before_other_changes() -> None:
    applied, first = list[Desired](), asyncio.Event()

    async def take(change: Desired) -> None:
        applied.append(change)
        await first.wait()

    async def grow() -> None: ...

    reconciler = Reconciler(take, grow, PlanningThreads())
    names = ("a", "b", "c")
    waiting = [asyncio.ensure_future(reconciler.reached(Unload(name))) for name in names]
    await asyncio.sleep(0.0)
    relief = [asyncio.ensure_future(reconciler.reached(Relieve())) for _ in range(2)]
    await asyncio.sleep(0.0)
    first.set()
    await asyncio.gather(*waiting, *relief)
    assert applied == [Unload("a"), Relieve(), Unload("b"), Unload("c")]
    await reconciler.close()


# What comes of it in a service.


def used(service: ServiceUnderTest) -> int:
    return service.inside.budget.used_bytes


async def relieve(service: ServiceUnderTest, n_bytes: int) -> None:
    """Have models give back so many bytes."""
    await service.inside.repository.relieve(used(service) - n_bytes)


async def ease(service: ServiceUnderTest) -> None:
    """Let all memory be free again, and models grow."""
    service.inside.repository.ease(service.inside.budget.total_bytes)
    await service.inside.repository.at_rest()


async def test_models_shrink_and_grow_again_as_they_were(
    settings: SettingsFactory, packs: Packs
) -> None:
    async with serving(settings(models=("tiny", "pair"), models_budget=16 << 20)) as service:
        budget, repository = service.inside.budget, service.inside.repository
        await repository.at_rest()
        before, plans = used(service), budget.held()
        for _ in range(3):
            await relieve(service, 1 << 10)
            assert used(service) <= before - (1 << 10)
            await repository.at_rest()
            assert used(service) <= budget.ceiling_bytes, "it has grown index once"
            for name in ("tiny", "pair"):
                await right(service, packs, name)
            await ease(service)
            assert budget.held() == plans


async def test_what_cannot_be_released_stays(settings: SettingsFactory, packs: Packs) -> None:
    async with serving(settings(models=("tiny", "pair"))) as service:
        budget = service.inside.budget
        await service.inside.repository.relieve(0)
        assert loaded(service) == {"tiny", "pair"}
        assert budget.exceeded_bytes == used(service)
        minimum = packs.smallest("tiny") + packs.smallest("pair")
        assert used(service) - budget.request_bytes <= minimum
        await right(service, packs, "pair")
        await ease(service)
        assert budget.exceeded_bytes == 0


async def test_idle_models_that_may_go_do_and_come_back_with_a_request(
    settings: SettingsFactory, packs: Packs
) -> None:
    options = crowding(packs, models_budget=16 << 20, pin="twin=1KiB")
    async with serving(settings(**options)) as service:
        repository = service.inside.repository
        await repository.at_rest()
        for name in ("twin", "pair", "tiny"):
            await right(service, packs, name)
        await relieve(service, 1)
        assert loaded(service) == {"twin", "tiny"}, "the one that was unused for longest"
        await repository.relieve(0)
        assert loaded(service) == {"twin"}, "it is pinned"
        await ease(service)
        for name in ("tiny", "pair"):
            await right(service, packs, name)
        assert loaded(service) == {"twin", "tiny", "pair"}


async def test_a_model_in_use_goes_last_and_after_its_requests(
    settings: SettingsFactory, packs: Packs, faults: Faults
) -> None:
    options = crowding(packs, models_budget=16 << 20, models=("tiny", "pair"))
    async with serving(settings(**options)) as service:
        repository = service.inside.repository
        await repository.at_rest()
        gate = Gate()
        faults.kernel = gate.hold
        using = asyncio.create_task(right(service, packs, "tiny"))
        await gate.reached()
        relieved = asyncio.create_task(repository.relieve(0))
        await until(lambda: loaded(service) == {"tiny"})
        assert not relieved.done()
        assert not using.done()
        faults.kernel = lambda: None
        gate.open()
        await asyncio.gather(using, relieved)
        assert loaded(service) == set()


async def test_a_model_that_cannot_be_opened_with_less_serves_as_before(
    settings: SettingsFactory, packs: Packs, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    """Its memory is above the ceiling for that, and within the budget."""
    async with serving(settings(models=("tiny",), models_budget=16 << 20)) as service:
        await service.inside.repository.at_rest()
        before = service.inside.budget.held()
        faults.read = Once(ReadError("a bad block"))
        await relieve(service, 1 << 10)
        assert service.inside.budget.held() == before
        assert "keeps the plan it has: a bad block" in caplog.text
        await right(service, packs, "tiny")
        await relieve(service, 1 << 10)
        assert service.inside.budget.held() != before


async def test_loads_are_within_the_ceiling_and_refusals_say_so(
    settings: SettingsFactory, packs: Packs
) -> None:
    options = {"models": ("tiny",), "models_budget": 16 << 20, "model_control": "explicit"}
    async with serving(settings(**options)) as service:
        repository, budget = service.inside.repository, service.inside.budget
        await repository.unload("tiny")
        await repository.relieve(budget.request_bytes + packs.smallest("tiny") // 2)
        refused = await service.client.post("/v2/repository/models/tiny/load")
        error(refused, 409, "tiny", "does not fit now", "the system lacks memory")
        assert loaded(service) == set()
        await ease(service)
        assert (await service.client.post("/v2/repository/models/tiny/load")).status_code == 200
        await right(service, packs, "tiny")


@pytest.mark.parametrize("switches", [0, 1, 2, 3, 5, 8, 13])
async def test_a_caller_that_leaves_changes_nothing(
    settings: SettingsFactory, packs: Packs, switches: int
) -> None:
    async with serving(settings(models=("tiny",), models_budget=16 << 20)) as service:
        repository = service.inside.repository
        await repository.at_rest()
        before = used(service)
        relieving = asyncio.create_task(repository.relieve(before - 1024))
        for _ in range(switches):
            await asyncio.sleep(0)
        relieving.cancel()
        await asyncio.wait({relieving})
        await repository.at_rest()
        assert used(service) == before if not switches else used(service) <= before - 1024
        await right(service, packs, "tiny")


async def test_what_is_done_is_counted(settings: SettingsFactory, packs: Packs) -> None:
    async with serving(settings(models=("tiny",), memory_pressure="headroom")) as service:
        assert service.inside.relieving is not None
        assert await service.metric("layerstream_pressure_info", signals="headroom") == 1
        await service.inside.repository.relieve(0)
        ceiling = await service.metric("layerstream_budget_ceiling_bytes")
        exceeded = await service.metric("layerstream_budget_exceeded_bytes")
        assert (ceiling, exceeded) == (0, used(service))
        for direction in ("up", "down"):
            name = "layerstream_ceiling_changes_total"
            assert await service.metric(name, direction=direction) == 0
