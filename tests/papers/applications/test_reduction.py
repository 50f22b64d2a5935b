"""Algorithm 2: the same for the same seed, never worse than the greedy exchange, clear errors."""

import sys

import pytest

from papers.applications.application import ApplicationError
from papers.applications.cost import Evaluated, Evaluator
from papers.applications.parts import CountCache
from papers.applications.reduction import (
    Constraints,
    GeneticSettings,
    Solution,
    exchange_path,
    front,
    reduce_buffers,
    unbeaten,
)
from tests.papers.applications.drawn import example

SMALL = GeneticSettings(population=12, generations=3)


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator(example())


@pytest.fixture(scope="module")
def found(evaluator: Evaluator) -> list[Solution]:
    return front(evaluator, SMALL)


def test_a_seed_decides(found: list[Solution]) -> None:
    assert front(Evaluator(example()), SMALL) == found
    other = GeneticSettings(SMALL.population, SMALL.generations, seed=1)
    assert front(Evaluator(example()), other) != found


def test_nothing_on_the_path_beats_the_front(evaluator: Evaluator, found: list[Solution]) -> None:
    """So its hypervolume is at least the path's."""
    for _, point in exchange_path(evaluator):
        assert any(
            all(a <= b for a, b in zip(item.point.objectives, point.objectives, strict=True))
            for item in found
        )


def test_the_path_goes_down_from_the_whole(evaluator: Evaluator) -> None:
    path = exchange_path(evaluator)
    sizes = [point.memory_bytes for _, point in path]
    assert path[0][0] == evaluator.all_whole()
    assert sizes == sorted(sizes, reverse=True)
    assert len(path) > 3


def test_points_are_what_their_chromosomes_come_to(found: list[Solution]) -> None:
    fresh = Evaluator(example())
    assert all(fresh.evaluated(item.genes) == item.point for item in found)


def test_nothing_on_a_front_is_beaten() -> None:
    points = [
        Evaluated(3, (1.0,)),
        Evaluated(2, (1.0,)),
        Evaluated(2, (1.0,)),
        Evaluated(1, (0.5,)),
    ]
    kept = unbeaten([Solution((number,), point) for number, point in enumerate(points)])
    assert [item.genes for item in kept] == [(3,), (1,)]


@pytest.mark.parametrize(
    ("constraints", "said"),
    [
        (
            Constraints(5_000),
            "no plan reaches at most 5,000 bytes: the nearest that was found takes 1",
        ),
        (
            Constraints(20_000, (50_000.0, 0.0)),
            "20,000 bytes with CNN1 at 50000 frames/s: the nearest",
        ),
        (
            Constraints(None, (1e9, 1e9)),
            "CNN2 at 1e\\+09 frames/s: the nearest that was found takes 3",
        ),
    ],
)
def test_constraints_that_nothing_meets(
    evaluator: Evaluator, constraints: Constraints, said: str
) -> None:
    with pytest.raises(ApplicationError, match=said):
        reduce_buffers(evaluator, constraints, SMALL)


def test_what_meets_throughput_and_memory_has_least_memory(evaluator: Evaluator) -> None:
    constraints = Constraints(30_000, (2_000.0, 20_000.0))
    best, found = reduce_buffers(evaluator, constraints, SMALL)
    meeting = [item for item in found if constraints.met(item.point)]
    assert best in meeting
    assert best.point.memory_bytes == min(item.point.memory_bytes for item in meeting)
    assert all(constraints.excess(item.point) <= 1 for item in meeting)


def test_without_pymoo_the_extra_is_named(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pymoo.optimize", None)
    with pytest.raises(ApplicationError, match=r"pip install '\.\[search\]'"):
        front(evaluator, SMALL)


def test_memory_is_bounded_and_what_is_known_is_right() -> None:
    known = CountCache(most_numbers=1000)
    held = []
    for key in range(200):
        known.keep(key, (key,) * 10)
        there = [each for each in range(key + 1) if known.get(each) is not None]
        assert all(known.get(each) == (each,) * 10 for each in there)
        assert key in there
        held.append(len(there))
    assert 10 < max(held) < 30
