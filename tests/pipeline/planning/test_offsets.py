"""Offsets in an arena: placements are valid, bounds hold, and the search agrees with brute force."""

from math import inf

import pytest

from pipeline.planning.offsets.exact import Limit, search
from pipeline.planning.offsets.heuristic import greedy
from pipeline.planning.offsets.problem import (
    LiveBuffer,
    OffsetsError,
    Placement,
    Problem,
    arena_bytes,
    components,
    divide,
    violations,
)
from pipeline.planning.offsets.solve import lower_bound, place
from tests.pipeline.offsets_cases import crowded, least_bytes, mixed, small_problem


def unlimited(nodes: int = 1_000_000) -> Limit:
    return Limit(nodes, clock=lambda: 0.0, deadline=inf)


def solved(problem: Problem, nodes: int = 20_000) -> Placement:
    placement = place(problem, seconds=inf, nodes=nodes)
    assert violations(problem, placement) == []
    assert placement.n_bytes >= placement.lower_bound_bytes >= lower_bound(problem)
    return placement


def check_against_brute_force(seed: int) -> None:
    problem = small_problem(seed)
    placement = solved(problem)
    assert placement.n_bytes == least_bytes(problem)
    assert placement.optimal


def check_the_search_alone(seed: int) -> None:
    """Without a heuristic: what is possible is found, and what is one unit less is disproved."""
    buffers = [b for b in small_problem(seed).buffers if b.takes_room]
    for indices in components(buffers):
        part = Problem(tuple(buffers[i] for i in indices))
        sections = divide(part.buffers)
        least = least_bytes(part) // sections.unit
        found = search(sections, least, unlimited()).offsets
        assert found is not None
        offsets = tuple(sections.bytes_of(found))
        assert violations(part, Placement(offsets, least * sections.unit, 0, "")) == []
        less = search(sections, least - 1, unlimited())
        assert less.offsets is None
        assert less.proven


def test_small_problems_take_what_brute_force_says() -> None:
    for seed in range(120):
        check_against_brute_force(seed)
        check_the_search_alone(seed)


@pytest.mark.slow
def test_ten_thousand_small_problems_take_what_brute_force_says() -> None:
    for seed in range(10_000):
        check_against_brute_force(seed)
        check_the_search_alone(seed)


def test_lives_are_half_open() -> None:
    a, b, c = LiveBuffer(100, 0, 2), LiveBuffer(80, 1, 3), LiveBuffer(60, 2, 4)
    assert solved(Problem((a, b, c))).n_bytes == 180
    assert solved(Problem((LiveBuffer(100, 0, 1), LiveBuffer(80, 1, 2)))).n_bytes == 100


# Found among random ones: each takes more than its largest live set, as brute force says.
@pytest.mark.parametrize("seed", [0, 47, 113, 189])
def test_a_bound_that_cannot_be_reached_is_raised_by_proof(seed: int) -> None:
    problem = small_problem(seed)
    placement = solved(problem)
    assert placement.optimal
    assert placement.n_bytes == least_bytes(problem) > lower_bound(problem)


@pytest.mark.parametrize(
    ("buffers", "offsets", "n_bytes"),
    [
        pytest.param((), (), 0, id="nothing"),
        pytest.param(
            (LiveBuffer(0, 0, 3), LiveBuffer(8, 2, 2)), (0, 0), 0, id="nothing that takes room"
        ),
        pytest.param((LiveBuffer(8, 0, 1, pin=24),), (24,), 32, id="a pin above a hole"),
        pytest.param(
            (LiveBuffer(8, 0, 2, pin=4), LiveBuffer(8, 1, 3)), (4, 12), 20, id="no room below"
        ),
        pytest.param(
            (LiveBuffer(8, 0, 2, pin=8), LiveBuffer(8, 1, 3)), (8, 0), 16, id="room below"
        ),
        pytest.param(
            (LiveBuffer(5, 0, 2, 4), LiveBuffer(1, 0, 1)), (0, 8), 9, id="padding is room"
        ),
        pytest.param((LiveBuffer(0, 0, 1, pin=64),), (64,), 0, id="an empty buffer keeps its pin"),
    ],
)
def test_places(buffers: tuple[LiveBuffer, ...], offsets: tuple[int, ...], n_bytes: int) -> None:
    placement = solved(Problem(buffers))
    assert (placement.offsets, placement.n_bytes) == (offsets, n_bytes)
    assert placement.optimal


def test_pins_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(OffsetsError, match="buffers 0 and 2 are pinned to the same bytes"):
        Problem((LiveBuffer(8, 0, 2, pin=0), LiveBuffer(8, 0, 2), LiveBuffer(8, 1, 3, pin=4)))
    Problem((LiveBuffer(8, 0, 2, pin=0), LiveBuffer(8, 2, 3, pin=4)))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"n_bytes": -1}, "a buffer of -1 bytes"),
        ({"alignment": 0}, "an alignment of 0 bytes"),
        ({"pin": 6, "alignment": 4}, "a pin at 6 with an alignment of 4"),
        ({"pin": -4, "alignment": 4}, "a pin at -4"),
    ],
)
def test_impossible_buffers_are_refused(numbers: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LiveBuffer(**{"n_bytes": 8, "start": 0, "end": 1, **numbers})


def test_a_capacity_ends_the_search_or_is_disproved() -> None:
    buffers = small_problem(0).buffers
    least = least_bytes(Problem(buffers))
    assert solved(Problem(buffers, capacity=least)).n_bytes == least
    assert solved(Problem(buffers, capacity=least - 1)).lower_bound_bytes > least - 1
    assert solved(Problem(buffers, capacity=1)).lower_bound_bytes > 1


def check_the_heuristic(problem: Problem) -> None:
    buffers, bound = problem.buffers, lower_bound(problem)
    for indices in components(buffers):
        part = [buffers[i] for i in indices]
        offsets = greedy(part, divide(part), bound)
        n_bytes = arena_bytes(part, offsets)
        assert n_bytes <= 1.25 * bound
        assert violations(Problem(tuple(part)), Placement(tuple(offsets), n_bytes, 0, "")) == []


@pytest.mark.parametrize("n_buffers", [150, 300, 450])
def test_the_heuristic_comes_near_the_bound_of_hard_problems(n_buffers: int) -> None:
    check_the_heuristic(crowded(n_buffers, seed=0))
    check_the_heuristic(mixed(n_buffers, seed=0))


@pytest.mark.slow
def test_the_heuristic_comes_near_the_bound_of_many_hard_problems() -> None:
    for seed in range(100):
        for n_buffers in (150, 300, 450):
            check_the_heuristic(crowded(n_buffers, seed))
            check_the_heuristic(mixed(n_buffers, seed))


def test_the_search_reaches_a_bound_that_the_heuristic_misses() -> None:
    problem = crowded(60, seed=4)
    assert place(problem, seconds=0).n_bytes > lower_bound(problem)
    assert solved(problem).n_bytes == lower_bound(problem)


def test_a_search_that_nodes_end_gives_the_same_again() -> None:
    problem = crowded(150, seed=1)
    once, again = (solved(problem, nodes=300) for _ in range(2))
    assert once == again


def test_time_ends_the_search_and_the_heuristic_remains() -> None:
    problem = crowded(150, seed=1)
    ticks = iter(range(1_000_000))
    placement = place(problem, seconds=20, clock=lambda: float(next(ticks)))
    assert violations(problem, placement) == []
    assert next(ticks) < 200
    assert placement.n_bytes <= place(problem, seconds=0).n_bytes
