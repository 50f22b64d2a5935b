"""Whole numbers times a scale are found in floats, and in nothing else."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.compiler.writing.storing import WholeNumbers, whole_numbers


def again(found: WholeNumbers) -> NDArray[np.float32]:
    return found.integers.astype(np.float32) * found.scales[:, None]


@given(
    seed=st.integers(0, 2**32 - 1),
    numbers=st.integers(1, 300),
    largest=st.integers(1, 128),
    log_scale=st.floats(-60, 60),
)
def test_what_a_quantiser_makes_is_found_to_the_bit(
    seed: int, numbers: int, largest: int, log_scale: float
) -> None:
    generator = np.random.default_rng(seed)
    integers = generator.integers(-largest, min(largest, 127) + 1, (5, numbers)).astype(np.float32)
    integers[2] = 0
    scales = (2.0**log_scale * generator.uniform(0.5, 2, (5, 1))).astype(np.float32)
    rows = integers * scales
    found = whole_numbers(rows, exact=True)
    assert found is not None
    np.testing.assert_array_equal(again(found), rows)


@given(seed=st.integers(0, 2**32 - 1), numbers=st.integers(1, 300))
def test_a_factor_behind_the_scale_is_part_of_it(seed: int, numbers: int) -> None:
    generator = np.random.default_rng(seed)
    integers = generator.integers(-127, 128, (4, numbers)).astype(np.float32)
    scales, factors = generator.uniform(0.5, 2, (2, 4, 1)).astype(np.float32)
    rows = integers * scales * factors
    found = whole_numbers(rows, exact=False)
    assert found is not None
    np.testing.assert_allclose(again(found), rows, rtol=2.0**-22, atol=0)


def test_what_was_trained_in_floats_is_not_whole() -> None:
    rows = np.random.default_rng(3).standard_normal((16, 64)).astype(np.float32)
    assert whole_numbers(rows, exact=False) is None
    rows = np.rint(np.clip(rows * 40, -127, 127))
    assert whole_numbers(rows, exact=True) is not None
    rows[3, 50] += 0.4
    assert whole_numbers(rows, exact=False) is None


def test_more_than_eight_bits_and_no_numbers_are_not_whole() -> None:
    rows = np.arange(-200, 200, dtype=np.float32)[None]
    assert whole_numbers(rows, exact=True) is None
    rows[0, 5] = np.inf
    assert whole_numbers(rows, exact=True) is None
