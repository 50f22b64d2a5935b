"""Races on a scripted clock: the smallest ratio wins, uneven turns run again, and all of it ends."""

from collections.abc import Callable, Iterator
from itertools import chain, cycle, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.measuring.races import Pass, Passes, Race, RacedPlan, Runner, measured_plan
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import examples, over
from tests.pipeline.synthetic import PAGE, program

SOURCE = program([2, 2, 2], [True] * 3)
#: Turns of a race with time enough: three before each halving, and fifteen of the last two.
MAX_ROUNDS = 15


class Timed:
    """Passes that last what ``seconds`` says, one after the other; ``count`` of them ran."""

    def __init__(self, seconds: Iterator[float]) -> None:
        self._seconds = seconds
        self.count = 0

    def __call__(self) -> float:
        self.count += 1
        return next(self._seconds)


def plan(index: int = 0) -> Plan:
    return make_plan(SOURCE, ARCHITECTURES["2s"], choice=Choice((2 + index) * PAGE))


def runners(*seconds: float) -> list[Runner[Pass]]:
    return [
        Runner(RacedPlan.of(plan(index)), Timed(repeat(value)))
        for index, value in enumerate(seconds)
    ]


def race_of(
    reference: Pass, entrants: list[Runner[Pass]], seconds: float, usual: float | None = None
) -> Race[Pass]:
    return Race(reference, entrants, seconds, usual)


def count_of(run: Pass) -> int:
    assert isinstance(run, Timed)
    return run.count


@examples(20, many=500)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=9, unique=True))
def test_the_smallest_ratio_wins(ticks: list[int]) -> None:
    entrants = runners(*(value / 10 for value in ticks))
    race = race_of(Timed(repeat(1.0)), entrants, seconds=1e6)
    winner = race.winner()
    assert winner is entrants[ticks.index(min(ticks))]
    assert winner.ratio == pytest.approx(min(ticks) / 10)
    assert winner.spread == (winner.ratio, winner.ratio)
    assert race.is_sure


def test_the_slower_half_leaves_after_three_rounds() -> None:
    entrants = runners(1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7)
    race_of(Timed(repeat(1.0)), entrants, seconds=1e6).winner()
    assert [count_of(runner.run) for runner in entrants] == [MAX_ROUNDS] * 2 + [6] * 2 + [3] * 4
    assert [len(runner.ratios) for runner in entrants] == [MAX_ROUNDS] * 2 + [6] * 2 + [3] * 4


def test_a_ratio_is_to_the_passes_of_pre_before_and_after() -> None:
    """A machine that becomes slower is slower for all: what counts is the same turn."""
    slower = Timed(1.02**index for index in range(1000))
    (entrant,) = runners(2.0)
    race_of(slower, [entrant], seconds=1e6).winner()
    expected = [2 * 2.0 / (1.02**n + 1.02 ** (n + 1)) for n in range(MAX_ROUNDS)]
    assert entrant.ratios == pytest.approx(expected)


def test_who_runs_first_changes_from_round_to_round() -> None:
    order: list[int] = []

    def noted(index: int) -> Callable[[], float]:
        def run() -> float:
            order.append(index)
            return 1.0 + index

        return run

    entrants = [Runner(RacedPlan.of(plan(index)), noted(index)) for index in range(2)]
    race_of(Timed(repeat(1.0)), entrants, seconds=1e6).winner()
    firsts = order[::2]
    assert abs(firsts.count(0) - firsts.count(1)) <= 1


# Uneven turns.


def test_a_round_in_which_pre_is_slow_runs_again() -> None:
    """Its ratio, which would have won, does not count."""
    slow_once = Timed(chain([1.0, 1.0, 1.0, 2.0], repeat(1.0)))
    entrants = runners(1.2, 1.1)
    winner = race_of(slow_once, entrants, seconds=1e6, usual=1.0).winner()
    assert winner is entrants[1]
    assert set(winner.ratios) == {1.1}
    assert len(winner.ratios) == MAX_ROUNDS
    assert count_of(winner.run) == MAX_ROUNDS + 1


@over("usual", [None, 1.0])
def test_a_machine_that_is_never_even_is_measured_all_the_same(usual: float | None) -> None:
    """Each turn that counts may run again once."""
    noisy = Timed(cycle([1.0, 1.5]))
    entrants = runners(1.0, 2.0)
    race = race_of(noisy, entrants, seconds=1e6, usual=usual)
    assert race.winner() is entrants[0]
    assert len(entrants[0].ratios) == MAX_ROUNDS
    assert count_of(entrants[0].run) == 2 * MAX_ROUNDS


@examples(20, many=500)
@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=40),
    st.lists(st.floats(0.1, 10), min_size=1, max_size=9),
    st.floats(0, 500),
)
def test_every_race_ends_near_its_time(
    pre: list[float], seconds: list[float], limit: float
) -> None:
    resident, entrants = Timed(cycle(pre)), runners(*seconds)
    race = race_of(resident, entrants, limit)
    winner = race.winner()
    assert winner.ratios
    spent = sum(
        count_of(runner.run) * value for runner, value in zip(entrants, seconds, strict=True)
    )
    spent += sum(value for value, _ in zip(cycle(pre), range(resident.count), strict=False))
    # At least one turn, and each part of the race may begin one more: at most one before each halving.
    longest = sum(seconds) + 2 * max(pre)
    assert spent <= limit + 6 * longest
    assert max(count_of(runner.run) for runner in entrants) <= 2 * (MAX_ROUNDS + 3 * 4)


def test_without_time_there_is_one_round_and_three_of_the_last() -> None:
    entrants = runners(3.0, 1.0, 2.0, 4.0)
    race = race_of(Timed(repeat(1.0)), entrants, seconds=0.0)
    assert race.winner() is entrants[1]
    assert [len(runner.ratios) for runner in entrants] == [1, 3, 3, 1]


@examples(20, many=300)
@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=6, unique=True),
    st.sets(st.integers(0, 60), max_size=30),
)
def test_a_round_with_an_interrupted_pass_runs_again(ticks: list[int], broken: set[int]) -> None:
    """What ran of it does not count; it begins with the reference, which may have run long ago."""
    entrants = [Runner(RacedPlan.of(plan(index)), index) for index in range(len(ticks))]
    race = Race(-1, entrants, seconds=1e6)
    ran: list[int] = []

    def driven() -> Passes[int, None]:
        """Interrupt the passes that are ``broken``."""
        winners.append((yield from race.passes()))

    winners: list[Runner[int]] = []
    passes, seconds = driven(), None
    while (run := next_of(passes, seconds)) is not None:
        assert run == -1 or seconds is not None
        seconds = None if len(ran) in broken else 1.0 if run < 0 else ticks[run] / 10
        ran.append(run)
    assert winners == [entrants[ticks.index(min(ticks))]]
    assert len(winners[0].ratios) == MAX_ROUNDS
    assert winners[0].ratio == pytest.approx(min(ticks) / 10)


def next_of(passes: Passes[int, None], seconds: float | None) -> int | None:
    """Return what ``passes`` run next, None at their end."""
    try:
        return passes.send(seconds)
    except StopIteration:
        return None


# Whether it is sure.


@over("noise, is_sure", [(0.0, True), (0.05, True), (0.2, False)])
def test_ratios_with_a_wide_spread_are_not_sure(noise: float, is_sure: bool) -> None:
    shaken = cycle([1 - noise, 1 + noise])
    entrant: Runner[Pass] = Runner(RacedPlan.of(plan()), Timed(shaken))
    race = race_of(Timed(repeat(1.0)), [entrant], seconds=1e6)
    race.winner()
    assert race.is_sure == is_sure
    low, high = entrant.spread
    assert low <= entrant.ratio <= high
    assert high - low == pytest.approx(2 * noise)


def test_the_spread_of_one_ratio_is_that_ratio() -> None:
    assert Runner(RacedPlan.of(plan()), Timed(repeat(1.0)), [1.5]).spread == (1.5, 1.5)


def test_a_runner_that_never_ran_is_last() -> None:
    assert Runner(RacedPlan.of(plan()), Timed(repeat(1.0))).ratio > 1e300


def test_a_profile_has_the_median_its_quartiles_and_the_plan() -> None:
    runner = Runner(RacedPlan.of(plan(3)), Timed(repeat(1.0)), [1.0, 1.1, 1.2, 1.3, 9.0])
    kept = measured_plan(runner)
    assert (kept.ratio, kept.spread, kept.rounds) == (1.2, (1.1, 1.3), 5)
    assert measured_plan(runner, 1.25).ratio == 1.25
    assert (kept.architecture, kept.total_bytes) == ("2s", runner.plan.total_bytes)
    assert make_plan(SOURCE, ARCHITECTURES["2s"], choice=kept.choice) == plan(3)
