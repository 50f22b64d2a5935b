"""A first plan is there at once, and fits wherever the smallest one does."""

from pathlib import Path
from typing import Any

import pytest

from models.packs.pack import open_pack
from pipeline.fitting import plan_search
from pipeline.fitting.fit import fit, heuristic_plan
from pipeline.fitting.plan_search import PlanSearch, Tried
from pipeline.fitting.wanted import LEAST, NOTHING, Wanted
from pipeline.planning import smallest
from pipeline.planning.plan import Choice, Plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.pipeline.made_profiles import profile
from tests.pipeline.small import small_pack


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Program:
    folder: Path = tmp_path_factory.mktemp("small")
    return Program.as_compiled(open_pack(small_pack(folder)))


def never(*_: object) -> None:
    raise AssertionError("a search")


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("name", ["auto", "2s", "pre", "2s-md"])
def test_it_fits_and_nothing_is_searched_for(
    network: Program, monkeypatch: pytest.MonkeyPatch, name: str, measured: bool
) -> None:
    architecture = ARCHITECTURES[name]
    known = profile(network) if measured or name == "2s-md" else None
    least = fit(network, architecture, LEAST, known).plan
    monkeypatch.setattr(plan_search, "row_variants", never)
    sizes = [least.total_bytes + part * network.weight_bytes // 8 for part in range(12)]
    taken = []
    for total in sizes:
        found = heuristic_plan(network, architecture, Wanted(total_bytes=total), least, known)
        assert found.heuristic
        assert least.total_bytes <= found.plan.total_bytes <= total
        assert (found.prediction is not None) == (known is not None)
        taken.append(found.plan.read_bytes)
    # What is left keeps weights, or is more ring.
    assert (taken[0], taken[-1]) == (max(taken), min(taken))


def test_smallest_plans_are_made_once_for_all_budgets(
    network: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    smallest_plan = smallest.smallest_plan
    plans: list[Plan] = []

    def counted(*args: Any) -> Plan:
        plans.append(smallest_plan(*args))
        return plans[-1]

    monkeypatch.setattr(smallest, "smallest_plan", counted)
    auto = ARCHITECTURES["auto"]
    searched = PlanSearch(Tried(network, auto, None), NOTHING)
    least = smallest_plan(network, auto).total_bytes
    for part in range(8):
        budget = least + part * network.weight_bytes // 4
        found = searched.streaming(Choice(), budget)
        alone = PlanSearch(Tried(network, auto, None), Wanted(total_bytes=budget)).streaming(
            Choice()
        )
        assert found is not None
        assert found == alone
        assert found.total_bytes <= budget
    assert len(plans) == 1 + 8  # one for all budgets, and one for each that is asked about alone
