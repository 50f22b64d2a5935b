"""The arena planner against a judge of its own, and against the least that any arrangement takes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.packs.records.ports import Port
from pipeline.planning.arena import most_alive, plan_arena
from pipeline.program.lives import ALIGNMENT, Lifetime, lifetimes
from tests.examples import examples
from tests.pipeline.arena_cases import crowded, mixed, violations
from tests.pipeline.synthetic import chain


@st.composite
def lives(draw: st.DrawFn) -> list[Lifetime]:
    steps = st.integers(0, 12)
    drawn = draw(st.lists(st.tuples(st.integers(0, 5000), steps, steps), max_size=24))
    return [Lifetime(size, min(a, b), max(a, b) + 1) for size, a, b in drawn]


@examples(25, many=3000)
@given(lives())
def test_no_two_values_that_live_together_overlap(values: list[Lifetime]) -> None:
    assert violations(values, plan_arena(values)) == []


@given(lives())
def test_the_arena_is_between_the_peak_and_the_sum(values: list[Lifetime]) -> None:
    def aligned(value: Lifetime) -> int:
        return -(-value.n_bytes // ALIGNMENT) * ALIGNMENT

    plan = plan_arena(values)
    peak = max(
        (sum(aligned(v) for v in values if v.start <= step < v.end) for step in range(14)),
        default=0,
    )
    assert peak == most_alive(values) <= plan.n_bytes <= sum(aligned(value) for value in values)


def test_a_chain_needs_its_two_largest_neighbours() -> None:
    program = chain([64, 640, 1280, 64], [[0], [1], [2]])
    assert plan_arena(lifetimes(program)).n_bytes == 640 + 1280


def test_inputs_live_from_the_start_and_outputs_to_the_end() -> None:
    program = chain([64, 64, 64, 64], [[0], [1], [0, 2]])
    ports = [Port(name=f"p{i}", dtype="uint8", shape=(64,), value=i) for i in (0, 1)]
    found = lifetimes(replace(program, inputs=(ports[0],), outputs=(ports[1],)))
    assert (found[0].start, found[0].end) == (0, 3)
    assert (found[1].start, found[1].end) == (0, 4)


def test_a_value_inside_another_keeps_it_alive() -> None:
    program = chain([64, 64, 128, 64], [[0], [1], [1]])
    inner = replace(program.values[1], parent=2, offset=64)
    values = (program.values[0], inner, *program.values[2:])
    found = lifetimes(replace(program, values=values))
    assert found[1].n_bytes == 0 or found[1].start == found[1].end
    assert (found[2].start, found[2].end) == (0, 3)


@pytest.mark.parametrize(
    ("values", "n_bytes"),
    [
        pytest.param([], 0, id="nothing"),
        pytest.param([Lifetime(0, 0, 3), Lifetime(8, 2, 2)], 0, id="nothing that takes room"),
        pytest.param(
            [Lifetime(100, 0, 1, 1), Lifetime(80, 1, 2, 1)], 100, id="one after the other"
        ),
        pytest.param(
            [Lifetime(100, 0, 2, 1), Lifetime(80, 1, 3, 1), Lifetime(60, 2, 4, 1)],
            180,
            id="the first and the last do not meet",
        ),
        pytest.param([Lifetime(5, 0, 2, 4), Lifetime(1, 0, 1, 1)], 9, id="padding is room"),
    ],
)
def test_places(values: list[Lifetime], n_bytes: int) -> None:
    plan = plan_arena(values)
    assert violations(values, plan) == []
    assert plan.n_bytes == n_bytes


def check_a_hard_problem(values: list[Lifetime]) -> None:
    plan = plan_arena(values)
    assert violations(values, plan) == []
    assert plan.n_bytes <= 1.25 * most_alive(values)
    assert plan_arena(values) == plan


@pytest.mark.parametrize(
    "count", [150, *(pytest.param(many, marks=pytest.mark.slow) for many in (300, 450))]
)
def test_comes_near_the_least_of_hard_problems(count: int) -> None:
    check_a_hard_problem(crowded(count, seed=0))
    check_a_hard_problem(mixed(count, seed=0))


@pytest.mark.slow
def test_comes_near_the_least_of_many_hard_problems() -> None:
    for seed in range(100):
        for count in (150, 300, 450):
            check_a_hard_problem(crowded(count, seed))
            check_a_hard_problem(mixed(count, seed))
