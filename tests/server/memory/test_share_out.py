"""One decision over all models of a budget: none below its least, even shares of the rest, true sums."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.budget.budget import Budget
from pipeline.budget.errors import RefusedError
from pipeline.budget.holdings import SHARED, Allocations, Holding
from pipeline.budget.sharing import Activations, Sharer, share_out, sharer
from pipeline.fitting.wanted import EnginePlanResult
from pipeline.planning.found_plans import FoundPlans
from pipeline.planning.plan import PlanError
from pipeline.schedule.architectures import ARCHITECTURES
from tests.pipeline.budget.sets import numbers
from tests.pipeline.synthetic import program

ONCE = ("arena", "scratch", "io")
KINDS = ("ring", "arena", "scratch", "io")
MEMORY = st.fixed_dictionaries({kind: st.integers(0, 60) for kind in KINDS})
MODELS = st.lists(st.tuples(MEMORY, st.integers(0, 100), st.integers(0, 30)), max_size=6)
WAYS = st.sampled_from(["auto", "own", "shared"])


def sharers(models: list[tuple[dict[str, int], int, int]]) -> list[Sharer]:
    return [
        numbers(f"m{number}", least, ring, arena)
        for number, (least, ring, arena) in enumerate(models)
    ]


@given(holdings=st.lists(st.tuples(MEMORY, st.booleans()), max_size=6))
def test_an_account_counts_each_byte_once(holdings: list[tuple[dict[str, int], bool]]) -> None:
    held = {str(number): Holding(*each) for number, each in enumerate(holdings)}
    own = sum(
        n_bytes
        for memory, in_turns in holdings
        for kind, n_bytes in memory.items()
        if not (in_turns and kind in ONCE)
    )
    together = [memory for memory, in_turns in holdings if in_turns]
    once = sum(max((each[kind] for each in together), default=0) for kind in ONCE)
    assert Allocations(held).n_bytes == own + once
    found = Allocations(held).account()
    assert sum(sum(kinds.values()) for kinds in found.values()) == own + once
    assert (SHARED in found) == bool(together)
    for number, (memory, in_turns) in enumerate(holdings):
        assert found[str(number)].items() <= memory.items()
        assert in_turns or found[str(number)] == memory


@given(
    total=st.integers(0, 400),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["reserve", "change", "release"]), st.sampled_from("abc"), MEMORY
        ).flatmap(lambda step: st.tuples(st.just(step), st.booleans())),
        max_size=20,
    ),
)
def test_the_ledger_never_exceeds_the_budget_in_turns_or_not(
    total: int, steps: list[tuple[tuple[str, str, dict[str, int]], bool]]
) -> None:
    budget, held = Budget(total), dict[str, Holding]()
    for (step, name, memory), in_turns in steps:
        changed = {**held, name: Holding(memory, in_turns)}
        if step == "release":
            budget.release(name)
            held.pop(name, None)
        elif step == "reserve" and name in held:
            continue
        elif Allocations(changed).n_bytes > total:
            with pytest.raises(RefusedError):
                getattr(budget, step)(name, memory, in_turns)
        else:
            getattr(budget, step)(name, memory, in_turns)
            held = changed
        assert budget.used_bytes == Allocations(held).n_bytes <= total
        assert budget.account() == Allocations(held).account()


@given(total=st.integers(0, 600), models=MODELS, way=WAYS)
def test_plans_fit_together_and_nobody_is_below_the_least(
    total: int, models: list[tuple[dict[str, int], int, int]], way: Activations
) -> None:
    budget, every = Budget(total), sharers(models)
    shares = share_out(every, budget, way)
    assert len(shares.outcomes) == len(every)
    assert budget.used_bytes <= total
    for each, outcome in zip(every, shares.outcomes, strict=True):
        if isinstance(outcome, EnginePlanResult):
            assert all(outcome.plan.memory[kind] >= n for kind, n in each.least.items())
    planned = [outcome for outcome in shares.outcomes if isinstance(outcome, EnginePlanResult)]
    held = {
        str(number): Holding(outcome.plan.memory, shares.in_turns)
        for number, outcome in enumerate(planned)
    }
    assert Allocations(held).n_bytes == budget.used_bytes
    if way != "auto":
        assert shares.in_turns == (way == "shared")


@given(total=st.integers(0, 600), models=MODELS)
def test_more_models_fit_in_turns_and_auto_is_the_better_of_both(
    total: int, models: list[tuple[dict[str, int], int, int]]
) -> None:
    def served(way: Activations) -> tuple[int, bool]:
        shares = share_out(sharers(models), Budget(total), way)
        return sum(isinstance(each, EnginePlanResult) for each in shares.outcomes), shares.in_turns

    own, auto = served("own")[0], served("auto")
    assert auto[0] >= own
    # Models do not wait for others where that gains nothing.
    assert auto[1] == (auto[0] > own)


def extra_bytes(minima: list[int], budget: Budget) -> list[int]:
    """What each model gets beyond its minimum; all could use more."""
    sharers = [numbers(str(i), {"ring": n}, ring=1 << 60) for i, n in enumerate(minima)]
    plans = [result.plan for result in share_out(sharers, budget, "own").plans()]
    return [plan.total_bytes - n for plan, n in zip(plans, minima, strict=True)]


@given(minima=st.lists(st.integers(0, 50), min_size=1, max_size=80), rest=st.integers(0, 1 << 40))
def test_the_rest_is_divided_evenly_up_to_a_step(minima: list[int], rest: int) -> None:
    budget, count = Budget(sum(minima) + rest), len(minima)
    extra = extra_bytes(minima, budget)
    assert budget.free_bytes == 0
    even = rest // count
    assert min(extra) >= even - even * count**2 // 32**2
    assert min(extra) >= even / 2
    assert max(extra) <= 3 * even + count


@given(count=st.integers(32, 200), rest=st.integers(1 << 20, 1 << 40))
def test_one_more_model_changes_four_of_many_or_fewer(count: int, rest: int) -> None:
    before, after = (extra_bytes([0] * n, Budget(rest)) for n in (count, count + 1))
    assert sum(a != b for a, b in zip(before, after, strict=False)) <= 4


def test_what_one_does_not_use_is_there_for_the_next() -> None:
    every = [numbers("small", {"ring": 10}, ring=5), numbers("large", {"ring": 10}, ring=500)]
    budget = Budget(100)
    plans = share_out(every, budget, "own").plans()
    assert [each.plan.total_bytes for each in plans] == [15, 85]


def test_a_model_that_cannot_fit_keeps_nothing_from_others() -> None:
    every = [numbers(str(i), {"ring": n}, ring=500) for i, n in enumerate((10, 95, 20))]
    outcomes = share_out(every, Budget(100), "own").outcomes
    assert isinstance(outcomes[1], RefusedError)
    assert [each.plan.total_bytes for each in outcomes if isinstance(each, EnginePlanResult)] == [
        45,
        55,
    ]


def test_who_comes_later_keeps_the_least() -> None:
    every = [numbers("now", {"ring": 10}, ring=500), Sharer("later", {"ring": 30})]
    budget = Budget(100)
    now, later = share_out(every, budget, "own").outcomes
    assert isinstance(now, EnginePlanResult)
    assert (now.plan.total_bytes, later) == (40, None)
    assert budget.used_bytes == 70


MIB = 1 << 20
LARGE = {"ring": 4 * MIB, "arena": 40 * MIB}


def test_two_large_arenas_in_a_budget_of_one() -> None:
    every = [numbers(name, LARGE) for name in ("one", "other")]
    in_turns = share_out(every, Budget(50 * MIB), "auto")
    assert in_turns.in_turns
    assert len(in_turns.plans()) == 2
    at_once = share_out(every, Budget(50 * MIB), "own")
    with pytest.raises(RefusedError, match="'other' does not fit") as caught:
        at_once.plans()
    for words in (
        "models compute at once, each in memory of its own",
        "in turns (--activations shared) 48.0 MiB is enough for all",
        "a budget of 88.0 MiB is enough for all models",
    ):
        assert words in str(caught.value)
    assert not share_out(every, Budget(88 * MIB), "auto").in_turns


def test_a_model_that_cannot_be_planned_leaves_the_others_its_place() -> None:
    def within(n_bytes: int) -> EnginePlanResult:
        raise PlanError("the profile lacks a kernel")

    every = [Sharer("bad", {"ring": 10}, within), numbers("good", {"ring": 10}, ring=500)]
    bad, good = share_out(every, Budget(100), "own").outcomes
    assert str(bad) == "the profile lacks a kernel"
    assert isinstance(good, EnginePlanResult)
    assert good.plan.total_bytes == 100


def drawn_sharers(seed: int, count: int) -> list[Sharer]:
    generator, models = random.Random(seed), []
    for index in range(count):
        pages = [generator.randint(1, 8) for _ in range(generator.randint(1, 4))]
        network = program(pages, [True] * len(pages))
        architecture = ARCHITECTURES["auto"]
        models.append(sharer(f"m{index}", network, architecture, known=FoundPlans()))
    return models


def test_plans_do_not_depend_on_what_was_planned_before() -> None:
    """As models come and go in a budget, and as a service would plan them that has just started."""
    models = drawn_sharers(1, 20)
    together = sum(sum(model.least.values()) for model in models)
    for count, total in ((4, 2.0), (20, 2.0), (19, 2.0), (20, 1.25)):
        for activations in ("own", "shared"):
            budget = round(total * together)
            planned = share_out(models[:count], Budget(budget), activations)
            anew = share_out(drawn_sharers(1, count), Budget(budget), activations)
            assert planned == anew
            assert len(planned.plans()) == count
