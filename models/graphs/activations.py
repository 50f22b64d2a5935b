"""Activations by the operators and attributes that name them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from numpy.typing import NDArray

from models.graphs.nodes import attributes

STANDARD = ("", "ai.onnx")
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Function:
    """An activation: a kind (``RELU``, ``SILU``, ...) and what its parameters are."""

    kind: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class _Kind:
    """``parameters``: names of attributes, and their defaults."""

    kind: str
    parameters: tuple[tuple[str, float], ...] = ()

    def function(self, given: Mapping[str, Any]) -> Function:
        values = [float(given.get(name, default)) for name, default in self.parameters]
        return Function(self.kind, *values)


_STANDARD_KINDS = {
    "Relu": _Kind("RELU"),
    "LeakyRelu": _Kind("LEAKY_RELU", (("alpha", 0.01),)),
    "Sigmoid": _Kind("SIGMOID"),
    "Tanh": _Kind("TANH"),
    "HardSigmoid": _Kind("HARD_SIGMOID", (("alpha", 0.2), ("beta", 0.5))),
    "HardSwish": _Kind("HARD_SWISH"),
    "Elu": _Kind("ELU", (("alpha", 1.0),)),
    "Softplus": _Kind("SOFTPLUS"),
    "Mish": _Kind("MISH"),
    "Exp": _Kind("EXP"),
    "Swish": _Kind("QUICK_GELU", (("alpha", 1.0),)),
}
_MICROSOFT_KINDS = {
    "QuickGelu": _Kind("QUICK_GELU", (("alpha", 1.702),)),
    "Gelu": _Kind("GELU"),
}


def function_of(
    node: onnx.NodeProto, constant: Callable[[str], NDArray[Any] | None]
) -> Function | None:
    """Return the activation that ``node`` alone is; None where it is none, or its bounds not constant."""
    kinds: Mapping[str, _Kind] = {}
    if node.domain in STANDARD:
        kinds = _STANDARD_KINDS
    elif node.domain == MICROSOFT:
        kinds = _MICROSOFT_KINDS
    if node.op_type in kinds and len(node.input) == 1:
        return kinds[node.op_type].function(attributes(node))
    if node.domain in STANDARD and node.op_type == "Gelu":
        tanh = attributes(node).get("approximate", "none") == "tanh"
        return Function("GELU_TANH" if tanh else "GELU")
    if node.domain in STANDARD and node.op_type == "Clip":
        return _clip(node, constant)
    return None


def function_named(name: str, parameters: Sequence[float]) -> Function | None:
    """Return the activation that a fused operator has as an attribute; None where there is none such.

    Parameters that are left out have their defaults.
    """
    if name == "Clip":
        low, high = (*parameters, *(float("-inf"), float("inf"))[len(parameters) :])
        return Function("CLIP", low, high)
    kind = _STANDARD_KINDS.get(name)
    if kind is None:
        return None
    names = (name for name, _ in kind.parameters)
    return kind.function(dict(zip(names, parameters, strict=False)))


def _clip(node: onnx.NodeProto, constant: Callable[[str], NDArray[Any] | None]) -> Function | None:
    """Return Clip's bounds: attributes in old opsets, inputs since 11, each of them optional."""
    bounds = [float("-inf"), float("inf")]
    for position, name in enumerate(("min", "max")):
        given = node.input[position + 1] if len(node.input) > position + 1 else ""
        if not given:
            bounds[position] = float(attributes(node).get(name, bounds[position]))
            continue
        value = constant(given)
        if value is None or value.size != 1:
            return None
        bounds[position] = float(value.item())
    return Function("CLIP", *bounds)
