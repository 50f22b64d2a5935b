"""The plans of a profile: races of real engines, and which of their winners stay for which budgets."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from loader.errors import LoaderError
from loader.pool.pool import ReadPool
from loader.readers.disk import Disk
from loader.readers.fakes import FaultyReader, MemoryReader, ReadFault
from models.packs.pack import Pack
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.opened import opened
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import LEAST, NOTHING, Wanted
from pipeline.measuring import plan_races
from pipeline.measuring.plan_races import (
    RacedBudget,
    default_budgets,
    measure_plans,
    race_candidates,
)
from pipeline.measuring.races import RaceOutcome, race
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Plan, PlanError
from pipeline.profiles.profile import MeasuredPlan, Profile
from pipeline.profiles.times import plan_key
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.pipeline.made_profiles import measured, profile

AUTO, PRE = ARCHITECTURES["auto"], ARCHITECTURES["pre"]


@pytest.fixture(scope="module")
def device() -> CpuDevice:
    return CpuDevice(1)


@pytest.fixture(scope="module")
def network(tiny_pack: Pack, device: CpuDevice) -> Program:
    return prepare(tiny_pack, device)


class Script:
    """In place of races: a plan that none had before is a little faster than all of these."""

    def __init__(self, is_sure: bool = True) -> None:
        self.is_sure = is_sure
        self.ratios: dict[str, float] = {}
        self.raced: list[list[Plan]] = []

    def __call__(self, program: Program, plans: Iterable[Plan], *_: Any, **__: Any) -> RaceOutcome:
        entrants = list(plans)
        self.raced.append(entrants)
        for plan in entrants:
            self.ratios.setdefault(plan_key(plan), 5.0 - len(self.ratios) / 10)
        *losers, winner = sorted(entrants, key=lambda plan: -self.ratios[plan_key(plan)])
        return RaceOutcome(self.of(winner), tuple(map(self.of, losers)), self.is_sure)

    def of(self, plan: Plan) -> MeasuredPlan:
        return measured(plan, self.ratios[plan_key(plan)])


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    races = Script()
    monkeypatch.setattr(plan_races, "race", races)
    return races


def measure(
    network: Program, device: CpuDevice, budgets: list[int], **options: Any
) -> tuple[Profile, list[RacedBudget]]:
    reports: list[RacedBudget] = []
    before = profile(network)
    after = measure_plans(
        *(network, AUTO, before, device, budgets), report=reports.append, **options
    )
    return after, reports


def test_default_budgets_are_from_the_smallest_to_all_weights(network: Program) -> None:
    budgets = default_budgets(network, AUTO)
    assert len(budgets) == 5
    assert budgets == sorted(set(budgets))
    assert budgets[0] == fit(network, AUTO, LEAST).plan.total_bytes
    assert not fit(network, AUTO, Wanted(total_bytes=budgets[-1])).plan.reads
    assert fit(network, PRE, NOTHING).plan.total_bytes == budgets[-1]


def test_each_budget_has_its_winner_and_what_won_within_less_races_within_more(
    network: Program, device: CpuDevice, script: Script
) -> None:
    budgets = default_budgets(network, AUTO)
    after, reports = measure(network, device, budgets[::-1])  # in any order
    assert [report.n_bytes for report in reports] == budgets
    for n_bytes, plans in zip(budgets, script.raced, strict=True):
        assert max(plan.total_bytes for plan in plans) <= n_bytes
    for plans, report in zip(script.raced[1:-1], reports, strict=False):
        assert plans[0].choice == report.plan.choice
    # What keeps all weights is measured, and races against nothing.
    assert [plan.read_bytes for plan in script.raced[-1]] == [0]
    assert {plan.key: plan.ratio for plan in after.plans} == pytest.approx(script.ratios)
    for n_bytes, report in zip(budgets, reports, strict=True):
        result = fit(network, AUTO, Wanted(total_bytes=n_bytes), after)
        assert result.plan.choice == report.plan.choice
        assert result.prediction is not None
        assert result.prediction.measured


def test_a_race_that_is_not_sure_is_reported_and_leaves_nothing(
    network: Program, device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_races, "race", Script(is_sure=False))
    after, (report,) = measure(network, device, default_budgets(network, AUTO)[2:3])
    assert not report.is_sure
    assert after == profile(network)


def test_a_race_without_entrants_leaves_nothing(
    network: Program, device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_races, "race", lambda *_, **__: RaceOutcome(None, (), is_sure=True))
    after, reports = measure(network, device, default_budgets(network, AUTO)[2:3])
    assert (after, reports) == (profile(network), [])


def test_a_budget_that_is_too_small_is_refused_with_what_is_required(
    network: Program, device: CpuDevice
) -> None:
    minimum = default_budgets(network, AUTO)[0]
    with pytest.raises(PlanError, match=rf"required .*\({minimum} bytes\).*excess 1 bytes"):
        measure(network, device, [minimum - 1])


def test_concurrent_engines_fit_in_the_free_memory(
    network: Program, device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = default_budgets(network, AUTO)[2]
    counts = []
    for free_bytes in (None, 1 << 40, 4 * budget, 0):
        script = Script()
        monkeypatch.setattr(plan_races, "race", script)
        measure(network, device, [budget], free_bytes=free_bytes)
        (plans,) = script.raced
        counts.append(len(plans))
        if free_bytes:
            assert sum(plan.total_bytes for plan in plans) <= free_bytes / 2
    assert counts[0] == counts[1] >= counts[2] >= counts[3] == 1


# Real engines, on a disk in memory.


def memory_disk(pack: Pack, *faults: ReadFault) -> Disk:
    """Return a disk whose readers fail by ``faults``, the first that is opened by the first of them."""
    content, struck = pack.weights_path.read_bytes(), iter(faults)

    def open_reader(_: Path) -> FaultyReader:
        fault = next(struck, None)
        return FaultyReader(MemoryReader(content), [] if fault is None else [fault])

    return Disk(open_reader, open_reader)


def raced(
    network: Program, device: CpuDevice, plans: list[Plan], *faults: ReadFault
) -> RaceOutcome:
    whole = make_plan(network, PRE)
    pool = ReadPool()
    try:
        with opened(network, whole, device, pool) as resident:
            disk = memory_disk(network.pack, *faults)
            return race(network, plans, resident, device, pool, 0.01, disk=disk)
    finally:
        pool.close()


@pytest.fixture(scope="module")
def plans(network: Program) -> list[Plan]:
    existing, budget = profile(network), default_budgets(network, AUTO)[2]
    return race_candidates(network, AUTO, existing, budget, 3)


def test_plans_run_against_each_other(
    network: Program, device: CpuDevice, plans: list[Plan]
) -> None:
    outcome = raced(network, device, plans)
    assert outcome.candidates == len(plans) == 3
    best = outcome.best
    assert isinstance(best, MeasuredPlan)
    assert best.choice in [plan.choice for plan in plans]
    assert best.rounds >= 1
    assert 0 < best.spread[0] <= best.ratio <= best.spread[1]
    assert min(other.ratio for other in outcome.others) >= best.ratio
    choices = [plan.choice for plan in (best, *outcome.others)]
    assert sorted(map(repr, choices)) == sorted(repr(plan.choice) for plan in plans)


def test_a_plan_that_cannot_be_opened_is_excluded(
    network: Program, device: CpuDevice, plans: list[Plan]
) -> None:
    outcome = raced(network, device, plans, ReadFault("io error"))
    assert outcome.candidates == len(plans) - 1
    assert outcome.best is not None
    assert outcome.best.choice != plans[0].choice
    broken = raced(network, device, plans[:1], ReadFault("wrong bytes", times=None))
    assert (broken.best, broken.candidates, broken.is_sure) == (None, 0, True)


def test_a_disk_that_fails_in_a_race_ends_it(
    network: Program, device: CpuDevice, plans: list[Plan]
) -> None:
    """The first reads are the first pass, which decides who takes part."""
    streaming = [plan for plan in plans if plan.read_bytes][:1]
    reads = len(streaming[0].reads)

    class Dying(FaultyReader):
        count = 0

        def read_into(self, offset: int, target: memoryview) -> None:
            self.count += 1
            if self.count > 3 * reads:
                raise LoaderError("gone")
            super().read_into(offset, target)

    content = network.pack.weights_path.read_bytes()
    disk = Disk(lambda _: Dying(MemoryReader(content), []))
    pool = ReadPool()
    try:
        with (
            opened(network, make_plan(network, PRE), device, pool) as resident,
            pytest.raises(LoaderError),
        ):
            race(network, streaming, resident, device, pool, 10.0, disk=disk)
    finally:
        pool.close()
