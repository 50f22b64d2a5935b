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
    "leaky": lambda x: np.where(x > 0, x, 0.1 * x),
    "tanh": np.tanh,
    "swish": lambda x: x * logistic(x),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "hard_mish": lambda x: np.where(x > 0, x, np.where(x > -2, x * x / 2 + x, 0)),
}
