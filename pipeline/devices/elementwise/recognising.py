"""Operators on elements to programs: an activation of several operators is one step."""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from types import MappingProxyType

from pipeline.devices.elementwise.patterns import ACTIVATIONS, Matcher
from pipeline.devices.elementwise.pieces import Node
from pipeline.devices.elementwise.programs import Step

_DOMAINS = ("", "ai.onnx", "com.microsoft")
_TWO = {"Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide", "Sum": "add"}
# With a number behind the tensor, or before it where that is the same.
_WITH_NUMBER = {"Add": "add_number", "Mul": "multiply_number", "Div": "divide_number"}
_COMMUTE = frozenset(("Add", "Mul"))
#: Operators of one tensor, their attributes and what these are by default.
_ALONE: Mapping[str, tuple[str, tuple[tuple[str, float], ...]]] = MappingProxyType(
    {
        "Neg": ("negative", ()),
        "Sigmoid": ("sigmoid", ()),
        "Tanh": ("tanh", ()),
        "Erf": ("erf", ()),
        "Mish": ("mish", ()),
        "HardSwish": ("hard_swish", ()),
        "LeakyRelu": ("leaky_relu", (("alpha", 0.01),)),
        "HardSigmoid": ("hard_sigmoid", (("alpha", 0.2), ("beta", 0.5))),
        "QuickGelu": ("silu", (("alpha", 1.702),)),
    }
)


def recognised(nodes: Sequence[Node], kept: Set[str]) -> list[Step] | None:
    """Return ``nodes``, in a valid order, as steps; None: the library does not know one of them.

    ``kept``: of the values that they make, those that somebody else reads.
    """
    if any(len(node.outputs) != 1 or node.domain not in _DOMAINS for node in nodes):
        return None
    steps = _activations(nodes, kept)
    covered = {at for step in steps for at in step.nodes}
    for at, node in enumerate(nodes):
        if at not in covered:
            step = _single(node, at)
            if step is None:
                return None
            steps.append(step)
    return sorted(steps, key=lambda step: step.nodes[-1])


def _activations(nodes: Sequence[Node], kept: Set[str]) -> list[Step]:
    matcher = Matcher(nodes)
    readers: dict[str, set[int]] = {}
    for at, node in enumerate(nodes):
        for name in node.inputs:
            readers.setdefault(name, set()).add(at)
    steps: list[Step] = []
    taken: set[int] = set()
    for activation in ACTIVATIONS:
        for at in range(len(nodes)):
            match = matcher.match(activation.pattern, at)
            if match is None or not taken.isdisjoint(match.nodes):
                continue
            inner = {nodes[other].outputs[0] for other in match.nodes if other != at}
            if kept & inner or any(not readers[name] <= match.nodes for name in inner):
                continue
            p = activation.p if isinstance(activation.p, float) else match.values[activation.p]
            result, operand = nodes[at].outputs[0], str(match.values["x"])
            steps.append(
                Step(
                    activation.operator,
                    (operand,),
                    result,
                    float(p),
                    nodes=tuple(sorted(match.nodes)),
                )
            )
            taken |= match.nodes
    return steps


def _single(node: Node, at: int) -> Step | None:
    """Return the step that one node is."""
    found = _arithmetic(node) or _bounded(node) or _alone(node)
    if found is None:
        return None
    operator, operands, p, q = found
    return Step(operator, operands, node.outputs[0], p, q, (at,))


_Found = tuple[str, tuple[str, ...], float, float]


def _arithmetic(node: Node) -> _Found | None:
    values = node.values
    if len(node.inputs) != 2 or not values:
        return None
    if len(values) == 2:
        operator = _TWO.get(node.operator)
        return None if operator is None else (operator, values, 0.0, 0.0)
    number_last = node.inputs[0] == values[0]
    number = node.constants[node.inputs[1 if number_last else 0]]
    if node.operator == "Sub" and number_last:
        return "add_number", values, -number, 0.0
    operator = _WITH_NUMBER.get(node.operator)
    if operator is None or not (number_last or node.operator in _COMMUTE):
        return None
    return operator, values, number, 0.0


def _bounded(node: Node) -> _Found | None:
    if node.operator == "Relu":
        return "clip", node.values, 0.0, math.inf
    if node.operator != "Clip" or len(node.values) != 1:
        return None
    # Bounds are inputs, before version 11 of the operators attributes; an input may be left out.
    given: Iterable[float] = (
        node.constants[name] if name else bound
        for name, bound in zip(node.inputs[1:], (-math.inf, math.inf), strict=False)
    )
    least = node.number("min", -math.inf)
    most = node.number("max", math.inf)
    bounds = [*given, *(least, most)[len(node.inputs) - 1 :]]
    return "clip", node.values, bounds[0], bounds[1]


def _alone(node: Node) -> _Found | None:
    if node.operator == "Gelu":
        exact = node.attributes.get("approximate", "none") == "none"
        return ("gelu", node.values, 0.0, 0.0) if exact and len(node.inputs) == 1 else None
    if node.operator not in _ALONE or len(node.inputs) != 1:
        return None
    operator, attributes = _ALONE[node.operator]
    numbers = [node.number(name, default) for name, default in attributes]
    if operator == "mish":
        numbers = [1.0]
    p, q = [*numbers, 0.0, 0.0][:2]
    return operator, node.values, p, q
