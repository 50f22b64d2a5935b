"""Activations of several nodes, as exporters and the compiler write them, and the one function each is."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Union

from models.network.activations import Activation, Kind, Number
from models.network.catalogue import traits_of
from models.network.names import Op
from models.network.node import Node

# Constants of a file are 32-bit floats, and written in few digits.
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class FoundOperator:
    """What ``operator`` makes of ``operands``; ``numbers``: its attributes."""

    operator: Op
    operands: tuple["Pattern", ...]
    numbers: tuple[tuple[str, float], ...] = ()


#: A value or, with a dollar, a constant by its name in the pattern ("$+": a positive one); a constant; or
#: what an operator makes.
Pattern = Union[str, float, FoundOperator]  # noqa: UP007  it refers to itself


@dataclass(frozen=True)
class FoundActivation:
    """``nodes``, ascending indices, are ``activation`` of the value ``x``; the last makes the result."""

    nodes: tuple[int, ...]
    x: str
    activation: Activation


@dataclass(frozen=True)
class _Match:
    """What the names of a pattern stand for, and the nodes that it covers."""

    values: Mapping[str, str | float]
    nodes: frozenset[int]


def _made(operator: Op, *operands: Pattern, **numbers: float) -> FoundOperator:
    return FoundOperator(operator, operands, tuple(numbers.items()))


_SIGMOID = _made(Op.Sigmoid, "x")
_SQUARE = _made(Op.Mul, _SIGMOID, _SIGMOID)
_BELOW = _made(Op.Min, "x", 0.0)
_CELU_OF_ONE = _made(Op.Max, "x", _made(Op.Sub, _made(Op.Exp, _BELOW), 1.0))
_SCALED = _made(Op.Sub, _made(Op.Exp, _made(Op.Div, _BELOW, "$+alpha")), 1.0)
#: As the compiler writes them where ONNX Runtime is slow or uneven; Mish of -x (optimising/rewrite.py).
REWRITTEN: Mapping[Kind, FoundOperator] = {
    "celu": _made(Op.Max, "x", _made(Op.Mul, _SCALED, "$+alpha")),
    "mish": _made(
        Op.Sub, "x", _made(Op.Div, "x", _made(Op.HardSigmoid, _SQUARE, alpha=0.5, beta=0.5))
    ),
}
_SOFTPLUS = _made(Op.Log, _made(Op.Add, _made(Op.Exp, "x"), 1.0))
_SIX = _made(Op.Clip, _made(Op.Add, "x", 3.0), 0.0, 6.0)
_ERFS = (
    _made(Op.Add, _made(Op.Erf, _made(Op.Div, "x", math.sqrt(2))), 1.0),
    _made(Op.Add, _made(Op.Erf, _made(Op.Mul, "x", math.sqrt(0.5))), 1.0),
)


@dataclass(frozen=True)
class _Spelled:
    """``pattern`` of a value x is ``activation``; ``alpha``: the constant that is its parameter."""

    pattern: FoundOperator
    activation: Activation
    alpha: str | None = None


_MISH, _GELU = Activation("mish", 1.0), Activation("gelu")
_SILU, _HARD_SWISH = Activation("silu", 1.0), Activation("hard_swish")
#: Larger ones first: one may be a part of another.
_PATTERNS = (
    _Spelled(REWRITTEN["celu"], Activation("celu"), "$+alpha"),
    _Spelled(_CELU_OF_ONE, Activation("celu", 1.0)),
    # As ONNX says it.
    _Spelled(
        _made(Op.Mul, _made(Op.Elu, _made(Op.Div, "x", "$+alpha"), alpha=1.0), "$+alpha"),
        Activation("celu"),
        "$+alpha",
    ),
    _Spelled(REWRITTEN["mish"], Activation("mish", -1.0)),
    _Spelled(_made(Op.Mul, "x", _made(Op.Tanh, _made(Op.Softplus, "x"))), _MISH),
    _Spelled(_made(Op.Mul, "x", _made(Op.Tanh, _SOFTPLUS)), _MISH),
    _Spelled(_made(Op.Mul, "x", _made(Op.Sigmoid, _made(Op.Mul, "x", "$alpha"))), _SILU, "$alpha"),
    _Spelled(_made(Op.Mul, "x", _SIGMOID), _SILU),
    _Spelled(_made(Op.Div, _made(Op.Mul, "x", _SIX), 6.0), _HARD_SWISH),
    _Spelled(_made(Op.Mul, "x", _made(Op.Div, _SIX, 6.0)), _HARD_SWISH),
    _Spelled(_made(Op.Mul, "x", _made(Op.Mul, _SIX, 1 / 6)), _HARD_SWISH),
    _Spelled(_made(Op.Mul, "x", _made(Op.HardSigmoid, "x", alpha=1 / 6, beta=0.5)), _HARD_SWISH),
    *(_Spelled(_made(Op.Mul, _made(Op.Mul, "x", erf), 0.5), _GELU) for erf in _ERFS),
    *(_Spelled(_made(Op.Mul, _made(Op.Mul, "x", 0.5), erf), _GELU) for erf in _ERFS),
    *(_Spelled(_made(Op.Mul, "x", _made(Op.Mul, erf, 0.5)), _GELU) for erf in _ERFS),
)


def activations_in(
    nodes: Sequence[Node], kept: Collection[str], number: Number
) -> Iterator[FoundActivation]:
    """Yield the activations of several of ``nodes``, which are in a valid order; no two share a node.

    ``kept``: values that something outside of ``nodes`` reads, so that they must be made. ``number``: of
    inputs that are constants.
    """
    matcher = _Matcher(nodes, number)
    readers: dict[str, set[int]] = {}
    for at, node in enumerate(nodes):
        for name in node.inputs:
            readers.setdefault(name, set()).add(at)
    taken: set[int] = set()
    for spelled in _PATTERNS:
        for at in matcher.ends(spelled.pattern):
            match = matcher.match(spelled.pattern, at)
            if match is None or not taken.isdisjoint(match.nodes):
                continue
            inner = {nodes[other].output for other in match.nodes if other != at}
            if not inner.isdisjoint(kept) or any(
                not readers[name] <= match.nodes for name in inner
            ):
                continue
            taken |= match.nodes
            activation = spelled.activation
            if spelled.alpha is not None:
                activation = replace(activation, alpha=float(match.values[spelled.alpha]))
            yield FoundActivation(tuple(sorted(match.nodes)), str(match.values["x"]), activation)


class _Matcher:
    """Finds patterns among ``nodes``."""

    def __init__(self, nodes: Sequence[Node], number: Number) -> None:
        self._nodes = nodes
        self._number = number
        self._maker = {name: at for at, node in enumerate(nodes) for name in node.outputs}
        self._by_operator: dict[str, list[int]] = {}
        for at, node in enumerate(nodes):
            self._by_operator.setdefault(node.operator, []).append(at)

    def ends(self, pattern: FoundOperator) -> Sequence[int]:
        """Return the nodes that may be the last one of ``pattern``."""
        return self._by_operator.get(pattern.operator, ())

    def match(self, pattern: FoundOperator, at: int) -> _Match | None:
        """Return how node ``at`` and those before it are ``pattern``; None: they are not."""
        return next(self._node(pattern, at, _Match({}, frozenset())), None)

    def _node(self, pattern: FoundOperator, at: int, found: _Match) -> Iterator[_Match]:
        node = self._nodes[at]
        if (node.operator, len(node.inputs)) != (pattern.operator, len(pattern.operands)):
            return
        if pattern.numbers:
            defaults = traits_of(node.operator).attributes
            given = {name: float(node.attributes.get(name, defaults[name])) for name in defaults}
            if not all(_near(given[name], number) for name, number in pattern.numbers):
                return
        found = _Match(found.values, found.nodes | {at})
        yield from self._all(pattern.operands, node.inputs, found)
        if traits_of(node.operator).commutes:
            yield from self._all(pattern.operands, node.inputs[::-1], found)

    def _all(
        self, patterns: Sequence[Pattern], names: Sequence[str], found: _Match
    ) -> Iterator[_Match]:
        if not patterns:
            yield found
            return
        for first in self._one(patterns[0], names[0], found):
            yield from self._all(patterns[1:], names[1:], first)

    def _one(self, pattern: Pattern, name: str, found: _Match) -> Iterator[_Match]:
        if isinstance(pattern, FoundOperator):
            if name in self._maker:
                yield from self._node(pattern, self._maker[name], found)
            return
        constant = self._number(name)
        if isinstance(pattern, float):
            if constant is not None and _near(constant, pattern):
                yield found
        elif pattern.startswith("$+") and (constant is None or constant <= 0):
            return
        elif (constant is not None) == pattern.startswith("$"):
            held = name if constant is None else constant
            if found.values.get(pattern, held) == held:
                yield _Match({**found.values, pattern: held}, found.nodes)


def _near(number: float, other: float) -> bool:
    return math.isclose(number, other, rel_tol=_TOLERANCE)
