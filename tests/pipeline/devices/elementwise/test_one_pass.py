"""Programs bound to arrays: which shapes go together, and which memory."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.devices.elementwise.one_pass import OnePass
from tests.pipeline.devices.elementwise.chains import library, needs_library, only

pytestmark = needs_library
_PRODUCT = only("multiply", 2)


@pytest.fixture(name="one_pass")
def _one_pass() -> Iterator[OnePass]:
    with closing(OnePass(library(), 2)) as made:
        yield made


@pytest.mark.parametrize(
    ("shape", "factor"),
    [
        ((1, 6, 5, 7), (1, 6, 1, 1)),
        ((1, 6, 5, 7), (6, 1, 1)),
        ((1, 4, 5, 7, 8), (1, 4, 1, 1, 8)),
        ((2, 6, 5), (2, 6, 1)),
        ((3, 4), (1, 4)),
        ((3, 4), (1, 1)),
        ((3, 4), ()),
    ],
)
def test_one_number_for_each_channel(
    one_pass: OnePass, shape: tuple[int, ...], factor: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal(shape, np.float32)
    f = np.asarray(rng.standard_normal(factor, np.float32), np.float32)
    y = np.empty_like(x)
    launch = one_pass.bind(_PRODUCT, [x, f, y])
    assert launch is not None
    launch()
    np.testing.assert_array_equal(y, x * f)


@pytest.mark.parametrize(
    ("x", "f"),
    [
        (np.ones((2, 3, 4), np.float32), np.ones((2, 1, 4, 1), np.float32)),
        (np.ones((2, 3, 4), np.float32), np.ones((1, 3, 1), np.float32)[:, ::-1]),
        (np.ones((2, 3, 4), np.float64), np.ones((2, 3, 4), np.float32)),
        (np.ones((3, 4, 5), np.float32), np.ones((3, 1, 5), np.float16)),
        (np.ones((4, 3, 4, 2), np.float32), np.ones((1, 3, 1, 2), np.float32)),
    ],
)
def test_what_does_not_go_together_is_refused(
    one_pass: OnePass, x: NDArray[Any], f: NDArray[Any]
) -> None:
    assert one_pass.bind(_PRODUCT, [x, f, np.empty(x.shape, np.float32)]) is None


def test_memory_that_overlaps_is_refused_unless_it_is_the_same(one_pass: OnePass) -> None:
    memory = np.arange(40, dtype=np.float32)
    x, shifted, f = memory[:20], memory[1:21], np.full(20, 2, np.float32)
    assert one_pass.bind(_PRODUCT, [x, f, shifted]) is None
    launch = one_pass.bind(_PRODUCT, [x, f, x])
    assert launch is not None
    launch()
    np.testing.assert_array_equal(memory[:20], 2 * np.arange(20, dtype=np.float32))
    channel = memory[20:21]
    y = memory[20:40]
    assert one_pass.bind(_PRODUCT, [x, channel, y]) is None
