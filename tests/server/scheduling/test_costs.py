"""What a sweep takes, from above: of what was seen, before that of what was said; and it heals."""

import pytest

from server.scheduling.costs import Costs
from tests.examples import over


def costs_of(*seen: tuple[int, float], predicted: float | None = None) -> Costs:
    costs = Costs()
    costs.expect("m", predicted, None)
    for requests, seconds in seen:
        costs.see("m", requests, seconds)
    return costs


def test_of_what_nobody_knows_it_says_nothing() -> None:
    assert Costs().sweep_seconds("m", 1) == 0.0
    assert costs_of().sweep_seconds("m", 4) == 0.0


def test_what_was_seen_counts_more_than_what_was_predicted() -> None:
    assert costs_of(predicted=2.0).sweep_seconds("m", 1) == 2.0
    assert costs_of((1, 1.0), predicted=2.0).sweep_seconds("m", 1) == pytest.approx(1.2)


def test_a_bound_is_from_above() -> None:
    costs = Costs()
    costs.expect("m", 1.0, 3.0)
    costs.see("m", 1, 1.0)
    assert costs.sweep_seconds("m", 1) == 3.0


def test_one_accident_among_many_does_not_count() -> None:
    assert costs_of(*[(1, 1.0)] * 20, (1, 50.0)).sweep_seconds("m", 1) == pytest.approx(1.2)
    assert costs_of(*[(1, 1.0)] * 20, *[(1, 50.0)] * 2).sweep_seconds("m", 1) > 50.0


@over("seen", [[(1, 1.0)], [(1, 1.0), (2, 1.5)], [(3, 2.0)], [(4, 0.5), (1, 1.0)]])
def test_more_requests_never_take_less(seen: list[tuple[int, float]]) -> None:
    costs = costs_of(*seen)
    taken = [costs.sweep_seconds("m", requests) for requests in range(1, 9)]
    assert taken == sorted(taken)
    assert all(taken)


def test_doubt_heals_a_guess_that_is_too_high() -> None:
    costs = costs_of((1, 1.0), (1, 60.0), predicted=30.0)
    assert costs.sweep_seconds("m", 1) > 60.0
    costs.doubt("m")
    assert costs.sweep_seconds("m", 1) == pytest.approx(1.2)
    costs.doubt("m")
    costs.doubt("m")
    assert costs.sweep_seconds("m", 1) == 0.0


@pytest.mark.parametrize("first", [{"predicted": 0.17}, {}])
def test_where_all_are_late_few_are_let_in(first: dict[str, float]) -> None:
    """And where one is in time after that, it is as if nothing had been late."""
    costs, limit = costs_of(**first), 0.1
    let_in = 0
    for _ in range(200):
        if costs.sweep_seconds("m", 1) > limit:
            costs.doubt("m")
        else:
            let_in += 1
            costs.see("m", 1, limit, late=True)
    assert 4 <= let_in <= 12
    tries = 0
    while costs.sweep_seconds("m", 1) > limit:
        costs.doubt("m")
        tries += 1
    assert tries <= 32
    costs.see("m", 1, 0.05)
    assert costs.sweep_seconds("m", 1) == pytest.approx(0.06)
    costs.see("m", 1, 1.0)
    costs.doubt("m")
    assert costs.sweep_seconds("m", 1) == pytest.approx(0.06)


def test_doubt_heals_what_answers_take_beside_their_sweeps() -> None:
    costs = costs_of()
    for _ in range(3):
        costs.see_outside(100.0)
    assert costs.outside_seconds > 100.0
    for _ in range(3):
        costs.doubt("m")
    assert costs.outside_seconds == 0.0


def test_of_a_hundred_answers_one_may_be_late() -> None:
    costs = costs_of()
    for seconds in [5.0, 5.0, *[1.0] * 98]:
        costs.see_outside(seconds)
    assert costs.outside_seconds == pytest.approx(6.0)
    for _ in range(128):
        costs.see_outside(1.0)
    assert costs.outside_seconds == pytest.approx(1.2)


def test_a_plan_begins_anew() -> None:
    costs = costs_of((1, 60.0))
    costs.expect("m", 1.0, None)
    assert costs.sweep_seconds("m", 1) == 1.0


def test_an_inference_ends_before_its_answer_is_due() -> None:
    costs = costs_of()
    assert costs.deadline(10.0, 1.0) == pytest.approx(10.98)  # the way to the client
    assert costs.deadline(10.0, 0.1) == pytest.approx(10.095)
    costs.see_outside(0.5)
    assert costs.deadline(10.0, 1.0) == pytest.approx(10.38)
