"""Darknet's activations (activations.h), in NumPy."""

from collections.abc import Callable

import numpy as np

from tests.models.darknet.oracle_files import Array


def logistic(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result


def gelu(x: Array) -> Array:
    result: Array = 0.5 * x * (1 + np.tanh(0.797885 * x + 0.035677 * x**3))
    return result


def elu(x: Array) -> Array:
    return np.where(x >= 0, x, np.expm1(np.minimum(x, 0)))


def plse(x: Array) -> Array:
    return np.where(x < -4, 0.01 * (x + 4), np.where(x > 4, 0.01 * (x - 4) + 1, 0.125 * x + 0.5))


def lhtan(x: Array) -> Array:
    return np.where(x < 0, 0.001 * x, np.where(x > 1, 0.001 * (x - 1) + 1, x))


def stair(x: Array) -> Array:
    n = np.floor(x)
    half = np.floor(x / 2)
    return np.where(n % 2 == 0, half, x - n + half)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "linear": lambda x: x,
    "logistic": logistic,
    "loggy": lambda x: 2 * logistic(x) - 1,
    "relu": lambda x: x * (x > 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "elu": elu,
    "selu": lambda x: 1.0507 * np.where(x >= 0, x, 1.6732 * elu(x)),
    "gelu": gelu,
    "relie": lambda x: np.where(x > 0, x, 0.01 * x),
    "ramp": lambda x: x * (x > 0) + 0.1 * x,
    "hardtan": lambda x: np.clip(x, -1, 1),
    "revleaky": lambda x: np.where(x > 0, x, 0.1 * x),
    "leaky": lambda x: np.where(x > 0, x, 0.1 * x),
    "tanh": np.tanh,
    "swish": lambda x: x * logistic(x),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "plse": plse,
    "lhtan": lhtan,
    "stair": stair,
    "hard_mish": lambda x: np.where(x > 0, x, np.where(x > -2, x * x / 2 + x, 0)),
}
