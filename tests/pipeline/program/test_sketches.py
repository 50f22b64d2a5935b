"""Sketches against regions, on random networks."""

from random import Random

import pytest

from tests.pipeline.program.promises import check_sketches
from tests.pipeline.program.row_programs import random_network


@pytest.mark.parametrize("block", range(2))
def test_sketches_are_the_regions_that_can_be(block: int) -> None:
    seen = 0
    for number in range(10 * block, 10 * (block + 1)):
        random = Random(number)
        seen += check_sketches(random_network(random, random.randint(2, 14)))
    assert seen > 100


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_sketches_are_the_regions_that_can_be(block: int) -> None:
    for number in range(20 + 100 * block, 20 + 100 * (block + 1)):
        random = Random(number)
        check_sketches(random_network(random, random.randint(2, 14)))
