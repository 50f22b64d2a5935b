"""Each step against NumPy in double precision, in units in the last place of the result."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.devices.interface.native import OPERATORS
from tests.examples import over
from tests.pipeline.devices.elementwise.chains import Floats, computed, library, needs_library

pytestmark = needs_library

Doubles = NDArray[np.float64]
_erf, _erfc = np.vectorize(math.erf), np.vectorize(math.erfc)


def sigmoid(x: Doubles) -> Doubles:
    return np.asarray(np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x))), float)


def mish(x: Doubles) -> Doubles:
    return np.asarray(x * np.tanh(np.logaddexp(0, x)), float)


def celu(x: Doubles, alpha: float) -> Doubles:
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0) / alpha), x)


def gelu(x: Doubles) -> Doubles:
    return np.asarray(0.5 * x * _erfc(-x / math.sqrt(2)), float)


def hard_swish(x: Doubles) -> Doubles:
    return np.asarray(x * np.clip(x / 6 + 0.5, 0, 1), float)


_P = float(np.float32(0.2))
_QUICK = float(np.float32(1.702))
# What each is, its parameters, and how many units its results may be off: a half where they are rounded
# once, 4 otherwise; GELU, a product of more factors, has 5.
CASES: dict[str, tuple[Callable[[Doubles], Doubles], float, float, float]] = {
    "negative": (lambda x: -x, 0, 0, 0),
    "copy": (lambda x: x, 0, 0, 0),
    "add_number": (lambda x: x + _P, _P, 0, 0.5),
    "multiply_number": (lambda x: x * _P, _P, 0, 0.5),
    "divide_number": (lambda x: x / _P, _P, 0, 0.5),
    "modulo_number": (lambda x: np.fmod(x, _P), _P, 0, 0),
    "larger_number": (lambda x: np.maximum(x, _P), _P, 0, 0),
    "smaller_number": (lambda x: np.minimum(x, _P), _P, 0, 0),
    "clip": (lambda x: np.clip(x, 0, 6), 0, 6, 0),
    "leaky_relu": (lambda x: np.where(x < 0, _P * x, x), _P, 0, 0.5),
    "hard_sigmoid": (lambda x: np.clip(_P * x + 0.5, 0, 1), _P, 0.5, 0.5),
    "hard_swish": (hard_swish, 0, 0, 3),
    "sigmoid": (sigmoid, 0, 0, 4),
    "silu": (lambda x: x * sigmoid(x), 1, 0, 4),
    "silu 1.702": (lambda x: x * sigmoid(_QUICK * x), _QUICK, 0, 4),
    "softsign": (lambda x: x / (1 + np.abs(x)), 0, 0, 2),
    "tanh": (np.tanh, 0, 0, 4),
    "mish": (mish, 1, 0, 4),
    "mish -1": (lambda x: mish(-x), -1, 0, 4),
    "celu": (lambda x: celu(x, _P), _P, 0, 4),
    "celu 1.702": (lambda x: celu(x, _QUICK), _QUICK, 0, 4),
    "erf": (lambda x: np.asarray(_erf(x), float), 0, 0, 4),
    "gelu": (gelu, 0, 0, 5),
}
TWO: dict[str, np.ufunc] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "modulo": np.fmod,
    "larger": np.maximum,
    "smaller": np.minimum,
}


def drawn() -> Floats:
    """Return numbers of all sizes, subnormal ones among them, and many of those that matter."""
    rng = np.random.default_rng(5)
    near = [rng.normal(0, scale, 4000) for scale in (0.01, 0.5, 2, 8, 40)]
    powers = 10.0 ** rng.uniform(-44, 38, 2000)
    return np.concatenate([*near, powers, -powers, np.linspace(-110, 110, 4001)]).astype(np.float32)


def units(got: Floats, expected: Doubles) -> float:
    """Return by how many units in the last place ``got`` is off at most; too large for a float is inf."""
    with np.errstate(over="ignore"):
        rounded = expected.astype(np.float32)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(got[~finite], rounded[~finite])
    last = np.spacing(np.abs(rounded[finite])).astype(float)
    return float(np.max(np.abs(got[finite] - expected[finite]) / last))


@over("case", CASES)
def test_one_operand(case: str) -> None:
    expect, p, q, limit = CASES[case]
    x = drawn()
    with np.errstate(all="ignore"):
        expected = expect(x.astype(float))
    assert units(computed(case.partition(" ")[0], x, p=p, q=q), expected) <= limit


@pytest.mark.parametrize("operator", ["larger", "smaller"])
def test_nan_of_either_operand_stays(operator: str) -> None:
    x = np.array([np.nan, np.nan, 1, 1], np.float32)
    y = np.array([1, np.nan, np.nan, 1], np.float32)
    np.testing.assert_array_equal(computed(operator, x, y), TWO[operator](x, y))


def test_modulo_has_the_bits_of_the_c_library_whatever_the_numbers() -> None:
    odd = [np.nan, np.inf, 0, 1e-45, 3e-45, 1.2e-38, 0.2, 1, 2.5, 3, 16777215, 3.4e38]
    odd += (
        np.random.default_rng(6).integers(0, 0x7F800000, 500, np.uint32).view(np.float32).tolist()
    )
    x, y = np.array(np.meshgrid([*odd, *np.negative(odd)], odd), np.float32).reshape(2, -1)
    with np.errstate(all="ignore"):
        expected = np.fmod(x, y)
    found = computed("modulo", x, y)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found[found == 0]), np.signbit(x[found == 0]))


@over("operator", TWO)
def test_two_operands(operator: str) -> None:
    x = drawn()
    y = x[::-1].copy()
    with np.errstate(all="ignore"):
        expected = TWO[operator](x, y)
    np.testing.assert_array_equal(computed(operator, x, y), expected)


def test_every_operator_has_a_case() -> None:
    assert {case.partition(" ")[0] for case in CASES} | set(TWO) == set(OPERATORS)


@over(
    "case, low, high",
    [
        ("sigmoid", 0, 1),
        ("silu", -0.0, np.inf),
        ("softsign", -1, 1),
        ("tanh", -1, 1),
        ("mish", -0.0, np.inf),
        ("celu", -_P, np.inf),
        ("erf", -1, 1),
        ("gelu", -0.0, np.inf),
        ("hard_swish", -0.0, np.inf),
        ("hard_sigmoid", 0, 1),
        ("larger_number", _P, np.inf),
        ("smaller_number", -np.inf, _P),
        ("clip", 0, 6),
        ("leaky_relu", -np.inf, np.inf),
    ],
)
def test_nan_stays_and_infinity_gives_the_limit(case: str, low: float, high: float) -> None:
    _, p, q, _ = CASES[case]
    x = np.array([np.nan, -np.inf, np.inf, -3e38, 3e38, -0.0], np.float32)
    result = computed(case, x, p=p, q=q)
    assert np.isnan(result[0])
    np.testing.assert_array_equal(result[1:3], np.array([low, high], np.float32))
    assert not np.isnan(result[3:]).any()


def test_all_processors_give_the_same_bits() -> None:
    x = drawn()
    before = library().processor
    others = [name for name in ("avx2", "avx512", "neon") if name != before]
    for case, (_, p, q, _) in CASES.items():
        operator = case.partition(" ")[0]
        expected = computed(operator, x, p=p, q=q).view(np.uint32)
        for other in others:
            try:
                if library().choose(other):
                    np.testing.assert_array_equal(
                        computed(operator, x, p=p, q=q).view(np.uint32), expected, case
                    )
            finally:
                assert library().choose(before)
