"""Seed 000's worked example, to the digit: Tables 1, 8 and 9, Fig. 3, Algorithm 2 within 20,000 bytes."""

import pytest

from papers.applications.application import Application, CnnBuffer, naive
from papers.applications.cost import Evaluator
from papers.applications.reduction import Constraints, GeneticSettings, reduce_buffers
from papers.applications.reuse import check, reuse
from papers.applications.schedule import Firing, Repeat, compressed
from tests.papers.applications.drawn import example

TABLE_1 = [
    (3072, ["CNN1:l1-l2"]),
    (8192, ["CNN1:l2-l3"]),
    (8192, ["CNN1:l2-l4"]),
    (8192, ["CNN1:l3-l4"]),
    (16384, ["CNN1:l4-l5"]),
    (3072, ["CNN2:l1-l2"]),
    (6272, ["CNN2:l2-l3(1)"]),
    (6272, ["CNN2:l2-l3(2)"]),
    (10, ["CNN2:l3-l4"]),
]
TABLE_8 = [
    (8192, ["CNN1:l1-l2", "CNN1:l3-l4", "CNN2:l1-l2"]),
    (16384, ["CNN1:l2-l3", "CNN1:l4-l5", "CNN2:l2-l3(1)"]),
    (8192, ["CNN1:l2-l4", "CNN2:l2-l3(2)"]),
    (10, ["CNN2:l3-l4"]),
]
TABLE_9 = [
    (3072, ["CNN1:l1-l2", "CNN1:l3-l4", "CNN2:l1-l2"]),
    (8192, ["CNN1:l2-l3", "CNN2:l2-l3(1)"]),
    (8192, ["CNN1:l2-l4", "CNN2:l2-l3(2)"]),
    (256, ["CNN1:l4-l5", "CNN2:l3-l4"]),
]
BY_PARTS = (0, 0, 1, 1, 1, 0, 0, 0, 0)


@pytest.fixture(scope="module")
def application() -> Application:
    return example()


def said(application: Application, buffers: tuple[CnnBuffer, ...]) -> list[tuple[int, list[str]]]:
    return [(each.size, [application.label(held) for held in each.edges]) for each in buffers]


def test_naive_buffers_are_table_1(application: Application) -> None:
    assert said(application, naive(application)) == TABLE_1
    assert application.memory(naive(application)) == 59_658


def test_reuse_gives_table_8(application: Application) -> None:
    buffers = reuse(application)
    assert said(application, buffers) == TABLE_8
    assert application.memory(buffers) == 32_778


def test_the_chromosome_of_table_10_gives_table_9(application: Application) -> None:
    evaluator = Evaluator(application)
    assert said(application, evaluator.buffers(BY_PARTS)) == TABLE_9
    assert evaluator.memory_bytes(BY_PARTS) == 19_712
    derived, sizes = evaluator.derived(BY_PARTS)
    check(derived, reuse(derived, sizes), sizes)


def test_the_schedule_of_fig_3(application: Application) -> None:
    firing = Firing(application.cnns[0], (0, 1), (1, 1))
    order = list(firing.order())
    assert compressed(order) == (
        Repeat((0,), 5),
        Repeat((1,), 1),
        Repeat((0, 1), 27),
        Repeat((1,), 4),
    )
    assert firing.most[0, 1] * 3 * 32 == 480


def test_algorithm_2_within_20000_bytes_finds_what_the_paper_found_or_less(
    application: Application,
) -> None:
    evaluator = Evaluator(application)
    best, _ = reduce_buffers(evaluator, Constraints(20_000), GeneticSettings(16, 3))
    assert best.point.memory_bytes <= 19_712


def test_reuse_is_enough_where_it_fits(application: Application) -> None:
    evaluator = Evaluator(application)
    best, _ = reduce_buffers(evaluator, Constraints(32_778))
    assert best.genes == evaluator.all_whole()
