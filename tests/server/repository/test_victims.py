"""Which models are evicted: enough for the new one, none in vain, and those in use last."""

from typing import cast

from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.budget.budget import Budget
from pipeline.budget.sharing import Activations, Sharer, admission, share_out
from pipeline.fitting.wanted import EnginePlanResult
from server.repository.fleet import Member, Place, victims
from tests.pipeline.budget.sets import numbers

LEAST = st.tuples(st.integers(0, 60), st.integers(0, 60))
#: Which plan a model has does not matter here.
PLACE = cast(Place, None)
WAYS = st.sampled_from(["auto", "own", "shared"])


def model(name: str, least: tuple[int, int]) -> Sharer:
    return numbers(name, {"ring": least[0], "arena": least[1]}, 20, 10)


@st.composite
def residents(draw: st.DrawFn) -> list[Member]:
    models = draw(st.lists(st.tuples(LEAST, st.booleans(), st.booleans()), max_size=5))
    times = draw(st.permutations(range(len(models))))
    return [
        Member(model(f"m{number}", least), times[number], PLACE, is_used, may_go)
        for number, (least, is_used, may_go) in enumerate(models)
    ]


@given(
    total=st.integers(0, 300),
    loaded=residents(),
    newcomer=LEAST,
    absent=st.lists(LEAST, max_size=2),
    way=WAYS,
)
def test_room_is_made_and_nobody_goes_for_nothing(
    total: int,
    loaded: list[Member],
    newcomer: tuple[int, int],
    absent: list[tuple[int, int]],
    way: Activations,
) -> None:
    new = model("new", newcomer)
    others = [model(f"absent{number}", least) for number, least in enumerate(absent)]

    def served(gone: set[str]) -> bool:
        """Whether the newcomer and all that stay get plans within the budget."""
        budget = Budget(total)
        staying = [each.sharer for each in loaded if each.sharer.name not in gone]
        away = [each.sharer for each in loaded if each.sharer.name in gone]
        waiting = sorted([*others, *away], key=lambda each: each.name)  # as they lie on disk
        shares = share_out([*staying, new, *waiting], budget, way, len(staying))
        assert budget.used_bytes <= total
        return all(
            isinstance(outcome, EnginePlanResult) for outcome in shares.outcomes[: len(staying) + 1]
        )

    gone = victims(new, loaded, others, Budget(total), way)
    candidates = {each.sharer.name: each for each in loaded if each.may_go}
    if gone is None:
        assert not served(set(candidates))
        assert not served(set())
        return
    assert candidates.keys() >= set(gone)  # pinned models stay
    assert served(set(gone))
    assert all(not served(set(gone) - {name}) for name in gone)
    if served(set()):
        assert gone == []
    idle = {name for name, each in candidates.items() if not each.is_used}
    if served(idle):
        assert idle >= set(gone)  # models in use go only where idle ones do not suffice


@given(
    total=st.integers(0, 300),
    models=st.lists(LEAST, min_size=1, max_size=6),
    loaded=st.integers(0, 5),
)
@example(total=115, models=[(35, 25), (35, 45), (25, 5)], loaded=1)
def test_models_that_wait_do_not_decide_whether_the_one_that_comes_is_admitted(
    total: int, models: list[tuple[int, int]], loaded: int
) -> None:
    loaded = min(loaded, len(models) - 1)
    sharers = [model(f"m{number}", least) for number, least in enumerate(models)]
    _, alone = admission(sharers[: loaded + 1], Budget(total), "auto", loaded)
    if alone == list(range(loaded + 1)):
        _, beside = admission(sharers, Budget(total), "auto", loaded)
        assert beside[: loaded + 1] == alone


def test_the_least_recently_used_goes_first() -> None:
    same = (10, 0)
    loaded = [Member(model(name, same), at, PLACE) for name, at in (("b", 2), ("c", 3), ("a", 1))]
    budget = Budget(30)
    assert victims(model("new", same), loaded, [], budget, "own") == ["a"]
    assert victims(model("new", (20, 0)), loaded, [], budget, "own") == ["a", "b"]
    assert victims(model("new", (31, 0)), loaded, [], budget, "own") is None


def test_who_was_chosen_in_vain_stays() -> None:
    """The oldest is too small to help: with the next one gone it need not go."""
    loaded = [Member(model("small", (1, 0)), 1, PLACE), Member(model("large", (20, 0)), 2, PLACE)]
    assert victims(model("new", (15, 0)), loaded, [], Budget(21), "own") == ["large"]
