"""The fused activations in float64."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.devices.cuda.calls.activation import Activation

Array = NDArray[Any]

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0, -x)))


def _gelu_tanh(x: Array) -> Array:
    return x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


_FUNCTIONS: dict[Activation, Callable[[Array, float, float], Array]] = {
    Activation.NONE: lambda x, alpha, beta: x,
    Activation.RELU: lambda x, alpha, beta: np.maximum(x, 0),
    Activation.LEAKY_RELU: lambda x, alpha, beta: np.where(x < 0, alpha * x, x),
    Activation.CLIP: np.clip,
    Activation.SIGMOID: lambda x, alpha, beta: _sigmoid(x),
    Activation.TANH: lambda x, alpha, beta: np.tanh(x),
    Activation.MISH: lambda x, alpha, beta: x * np.tanh(np.logaddexp(0, x)),
    Activation.SILU: lambda x, alpha, beta: x * _sigmoid(x),
    Activation.HARD_SIGMOID: lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
    Activation.HARD_SWISH: lambda x, alpha, beta: x * np.clip(x / 6 + 0.5, 0, 1),
    Activation.ELU: lambda x, alpha, beta: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x),
    Activation.SOFTPLUS: lambda x, alpha, beta: np.logaddexp(0, x),
    Activation.EXP: lambda x, alpha, beta: np.exp(x),
    Activation.GELU: lambda x, alpha, beta: 0.5 * x * _erfc(-x / math.sqrt(2)),
    Activation.GELU_TANH: lambda x, alpha, beta: _gelu_tanh(x),
    Activation.QUICK_GELU: lambda x, alpha, beta: x * _sigmoid(alpha * x),
}


def activate(x: Array, activation: Activation, alpha: float, beta: float) -> Array:
    """Return ``activation`` of float64 numbers."""
    return _FUNCTIONS[activation](x, alpha, beta)
