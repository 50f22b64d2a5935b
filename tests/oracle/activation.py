"""Activations, as operators of their own and fused into another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.oracle.base import Array, Call, Operator, wide


@dataclass(frozen=True)
class Activation:
    """``function`` of float64 and of parameters, whose names and defaults are the operator's."""

    function: Callable[..., Array]
    parameters: tuple[tuple[str, float], ...] = ()


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


def _leaky(x: Array, alpha: float) -> Array:
    return np.where(x < 0, alpha * x, x)


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x < 0, alpha * np.expm1(x), x)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    return np.clip(alpha * x + beta, 0, 1)


def _hard_swish(x: Array) -> Array:
    return x * np.clip(x / 6 + 0.5, 0, 1)


def _quick_gelu(x: Array, alpha: float) -> Array:
    return x * _sigmoid(alpha * x)


def _softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def _clip(x: Array, low: float, high: float) -> Array:
    return np.minimum(np.maximum(x, low), high)


ACTIVATIONS: dict[str, Activation] = {
    "Relu": Activation(_relu),
    "LeakyRelu": Activation(_leaky, (("alpha", 0.01),)),
    "Elu": Activation(_elu, (("alpha", 1.0),)),
    "Celu": Activation(lambda x, alpha: alpha * _elu(x / alpha, 1.0), (("alpha", 1.0),)),
    "Selu": Activation(
        lambda x, alpha, gamma: gamma * _elu(x, alpha), (("alpha", 1.6732632), ("gamma", 1.050701))
    ),
    "Sigmoid": Activation(_sigmoid),
    "HardSigmoid": Activation(_hard_sigmoid, (("alpha", 0.2), ("beta", 0.5))),
    "HardSwish": Activation(_hard_swish),
    "Softsign": Activation(lambda x: x / (1 + np.abs(x))),
    "Tanh": Activation(np.tanh),
    "ThresholdedRelu": Activation(lambda x, alpha: np.where(x > alpha, x, 0), (("alpha", 1.0),)),
    "Softplus": Activation(_softplus),
    "Clip": Activation(_clip, (("min", -np.inf), ("max", np.inf))),
}


def activate(x: Array, name: str | None, parameters: Sequence[float] = ()) -> Array:
    """Return activation ``name`` of ``x`` (None: ``x``); parameters not given have their default."""
    if name is None:
        return x
    chosen = ACTIVATIONS[name]
    defaults = [default for _, default in chosen.parameters]
    given = list(parameters)[: len(defaults)]
    return chosen.function(x, *given, *defaults[len(given) :])


def _operator(chosen: Activation) -> Operator:
    def run(call: Call) -> list[Array]:
        x = call.input(0)
        parameters = [call.attribute(*parameter) for parameter in chosen.parameters]
        return [chosen.function(wide(x), *parameters).astype(x.dtype)]

    return run


def _clip_operator(call: Call) -> list[Array]:
    """Clip: the bounds are inputs from opset 11 on, each of them optional."""
    x = call.input(0)
    bounds = (call.optional(1), call.optional(2))
    low, high = (
        call.attribute(name) if bound is None else bound
        for name, bound in zip(("min", "max"), bounds, strict=True)
    )
    result = x
    if low is not None:
        result = np.maximum(result, low)
    if high is not None:
        result = np.minimum(result, high)
    return [result.astype(x.dtype)]


OPERATORS: dict[str, Operator] = {
    **{name: _operator(chosen) for name, chosen in ACTIVATIONS.items()},
    "Clip": _clip_operator,
}
#: In the domain com.microsoft; alpha 1 is SiLU.
MICROSOFT_OPERATORS: dict[str, Operator] = {
    "QuickGelu": _operator(Activation(_quick_gelu, (("alpha", 1.702),))),
}
