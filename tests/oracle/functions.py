"""The functions of each element that kernels have, in float64."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.activations import Activation, Kind

Array = NDArray[Any]

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0, -x)))


def _gelu_tanh(x: Array) -> Array:
    return x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


_FUNCTIONS: dict[Kind, Callable[[Array, float, float], Array]] = {
    "absolute": lambda x, alpha, beta: np.abs(x),
    "ceil": lambda x, alpha, beta: np.ceil(x),
    "celu": lambda x, alpha, beta: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0) / alpha), x),
    "clip": np.clip,
    "elu": lambda x, alpha, beta: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x),
    "erf": lambda x, alpha, beta: 1 - _erfc(x),
    "exp": lambda x, alpha, beta: np.exp(x),
    "floor": lambda x, alpha, beta: np.floor(x),
    "gelu": lambda x, alpha, beta: 0.5 * x * _erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x, alpha, beta: _gelu_tanh(x),
    "hard_sigmoid": lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
    "hard_swish": lambda x, alpha, beta: x * np.clip(x / 6 + 0.5, 0, 1),
    "leaky_relu": lambda x, alpha, beta: np.where(x < 0, alpha * x, x),
    "log": lambda x, alpha, beta: np.log(x),
    "mish": lambda x, alpha, beta: alpha * x * np.tanh(np.logaddexp(0, alpha * x)),
    "negative": lambda x, alpha, beta: -x,
    "reciprocal": lambda x, alpha, beta: 1 / x,
    "relu": lambda x, alpha, beta: np.maximum(x, 0),
    "round": lambda x, alpha, beta: np.round(x),
    "selu": lambda x, alpha, beta: beta * np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x),
    "sigmoid": lambda x, alpha, beta: _sigmoid(x),
    "sign": lambda x, alpha, beta: np.sign(x),
    "silu": lambda x, alpha, beta: x * _sigmoid(alpha * x),
    "softplus": lambda x, alpha, beta: np.logaddexp(0, x),
    "softsign": lambda x, alpha, beta: x / (1 + np.abs(x)),
    "sqrt": lambda x, alpha, beta: np.sqrt(x),
    "tanh": lambda x, alpha, beta: np.tanh(x),
    "thresholded_relu": lambda x, alpha, beta: np.where(x <= np.float32(alpha), 0, x),
}


def activate(x: Array, activation: Activation | None) -> Array:
    """Return ``activation`` of float64 numbers."""
    if activation is None:
        return x
    return _FUNCTIONS[activation.kind](x, activation.alpha, activation.beta)
