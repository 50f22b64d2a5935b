"""Activations in several operators, as exporters and the compiler write them, and the step each is."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from pipeline.devices.elementwise.pieces import Node

_COMMUTE = frozenset(("Add", "Mul"))
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Made:
    """What ``operator`` makes of ``operands``; ``numbers``: its attributes."""

    operator: str
    operands: tuple["Pattern", ...]
    numbers: tuple[tuple[str, float], ...] = ()


#: A value or, with a dollar, a constant by its name in the pattern; a constant; or what an operator makes.
Pattern = Union[str, float, Made]  # noqa: UP007  it refers to itself


@dataclass(frozen=True)
class Activation:
    """``pattern`` of a value x as the step ``operator``, whose parameter ``p`` is a number or its name."""

    operator: str
    pattern: Made
    p: float | str = 0.0


@dataclass(frozen=True)
class Match:
    """What the names of a pattern stand for, and the nodes that it covers."""

    values: Mapping[str, str | float]
    nodes: frozenset[int]


def _made(operator: str, *operands: Pattern, **numbers: float) -> Made:
    return Made(operator, operands, tuple(numbers.items()))


_SIGMOID = _made("Sigmoid", "x")
_SQUARE = _made("Mul", _SIGMOID, _SIGMOID)
_SOFTPLUS = _made("Log", _made("Add", _made("Exp", "x"), 1.0))
_SIX = _made("Clip", _made("Add", "x", 3.0), 0.0, 6.0)
_ERFS = (
    _made("Add", _made("Erf", _made("Div", "x", math.sqrt(2))), 1.0),
    _made("Add", _made("Erf", _made("Mul", "x", math.sqrt(0.5))), 1.0),
)

#: Larger ones first: one may be a part of another.
ACTIVATIONS = (
    # As models/compiler/optimising/rewrite.py says it, of -x.
    Activation(
        "mish",
        _made("Sub", "x", _made("Div", "x", _made("HardSigmoid", _SQUARE, alpha=0.5, beta=0.5))),
        p=-1.0,
    ),
    Activation("mish", _made("Mul", "x", _made("Tanh", _made("Softplus", "x"))), p=1.0),
    Activation("mish", _made("Mul", "x", _made("Tanh", _SOFTPLUS)), p=1.0),
    Activation("silu", _made("Mul", "x", _made("Sigmoid", _made("Mul", "x", "$p"))), p="$p"),
    Activation("silu", _made("Mul", "x", _SIGMOID), p=1.0),
    Activation("hard_swish", _made("Div", _made("Mul", "x", _SIX), 6.0)),
    Activation("hard_swish", _made("Mul", "x", _made("Div", _SIX, 6.0))),
    Activation("hard_swish", _made("Mul", "x", _made("Mul", _SIX, 1 / 6))),
    Activation("hard_swish", _made("Mul", "x", _made("HardSigmoid", "x", alpha=1 / 6, beta=0.5))),
    *(Activation("gelu", _made("Mul", _made("Mul", "x", erf), 0.5)) for erf in _ERFS),
    *(Activation("gelu", _made("Mul", _made("Mul", "x", 0.5), erf)) for erf in _ERFS),
    *(Activation("gelu", _made("Mul", "x", _made("Mul", erf, 0.5))) for erf in _ERFS),
)
_DEFAULTS = {"HardSigmoid": {"alpha": 0.2, "beta": 0.5}}


class Matcher:
    """Finds patterns among ``nodes``, which are in a valid order."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._maker = {name: at for at, node in enumerate(nodes) for name in node.outputs}

    def match(self, pattern: Made, at: int) -> Match | None:
        """Return how node ``at`` and those before it are ``pattern``; None: they are not."""
        return next(self._node(pattern, at, Match({}, frozenset())), None)

    def _node(self, pattern: Made, at: int, found: Match) -> Iterator[Match]:
        node = self._nodes[at]
        if (node.operator, len(node.inputs)) != (pattern.operator, len(pattern.operands)):
            return
        defaults = _DEFAULTS.get(node.operator, {})
        if any(
            not _near(node.number(name, defaults.get(name, math.nan)), number)
            for name, number in pattern.numbers
        ):
            return
        found = Match(found.values, found.nodes | {at})
        yield from self._all(pattern.operands, node.inputs, node, found)
        if node.operator in _COMMUTE:
            yield from self._all(pattern.operands, node.inputs[::-1], node, found)

    def _all(
        self, patterns: Sequence[Pattern], names: Sequence[str], node: Node, found: Match
    ) -> Iterator[Match]:
        if not patterns:
            yield found
            return
        for first in self._one(patterns[0], names[0], node, found):
            yield from self._all(patterns[1:], names[1:], node, first)

    def _one(self, pattern: Pattern, name: str, node: Node, found: Match) -> Iterator[Match]:
        constant = node.constants.get(name)
        if isinstance(pattern, Made):
            if name in self._maker:
                yield from self._node(pattern, self._maker[name], found)
        elif isinstance(pattern, float):
            if constant is not None and _near(constant, pattern):
                yield found
        elif (constant is not None) == pattern.startswith("$"):
            held = name if constant is None else constant
            if found.values.get(pattern, held) == held:
                yield Match({**found.values, pattern: held}, found.nodes)


def _near(number: float, other: float) -> bool:
    return math.isclose(number, other, rel_tol=_TOLERANCE)
