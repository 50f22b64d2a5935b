"""Which nodes a convolution can compute along with its own: a sum with a shortcut, an activation.

What is in between then never goes to memory. An activation may be written as several nodes (a SiLU as
Sigmoid and Mul); on its own such a group is one operator, too.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from numpy.typing import NDArray

from models.graphs.activations import MICROSOFT, STANDARD, Function, function_of
from models.graphs.nodes import attributes


@dataclass(frozen=True)
class Surroundings:
    """The graph around a node.

    ``readers``: indices of the nodes that read a value. ``kept``: values that something outside of
    ``nodes`` reads. ``shape`` and ``constant`` give None where they do not know, or it is none.
    """

    nodes: Sequence[onnx.NodeProto]
    readers: Mapping[str, Sequence[int]]
    kept: Container[str]
    shape: Callable[[str], tuple[int, ...] | None]
    constant: Callable[[str], NDArray[Any] | None]


@dataclass(frozen=True)
class Fusion:
    """What is computed at once: ``nodes`` (indices, the first node of all first) make ``output``.

    ``residual`` is added before the activation, or after it with ``residual_last``.
    """

    nodes: tuple[int, ...]
    output: str
    function: Function | None = None
    residual: str | None = None
    residual_last: bool = False


@dataclass(frozen=True)
class _Group:
    """x times what a chain of operators makes of x; ``needed`` is what the first one must be."""

    chain: tuple[str, ...]
    kind: str
    needed: Function


_GROUPS = (
    _Group(("Softplus", "Tanh"), "MISH", Function("SOFTPLUS")),
    _Group(("Sigmoid",), "SILU", Function("SIGMOID")),
    _Group(("HardSigmoid",), "HARD_SWISH", Function("HARD_SIGMOID", 1 / 6, 0.5)),
)

_CONVOLUTIONS = ("Conv", "FusedConv")
#: Operators whose kernels apply an activation to what they compute.
_WITH_ACTIVATION = (*_CONVOLUTIONS, "Gemm", "FusedGemm", "BatchNormalization", "Add", "Mul")


def fused_with(around: Surroundings, index: int) -> Fusion | None:
    """Return what is computed at once with node ``index``; None where that is the node alone.

    The others can run right behind the node: all that they read is there before it. A node that is the
    first one of an activation of several nodes is fused with the rest of them.
    """
    node = around.nodes[index]
    activation = _activation(around, node.input[0], index) if node.input else None
    if activation is not None:
        return activation if len(activation.nodes) > 1 else None
    if not _is(node, _WITH_ACTIVATION):
        return None
    return _behind(around, index)


def _is(node: onnx.NodeProto, kinds: Container[str]) -> bool:
    return node.op_type in kinds and node.domain in (*STANDARD, MICROSOFT)


def _behind(around: Surroundings, index: int) -> Fusion | None:
    """Return the fusion of a node and a sum and an activation behind it, in either order."""
    node = around.nodes[index]
    given = attributes(node)
    output = node.output[0]
    nodes, function, residual, residual_last = [index], None, None, False
    may_sum = _is(node, _CONVOLUTIONS) and not (len(node.input) > 3 and node.input[3])
    may_activate = not given.get("activation")
    if len(node.output) > 1 and any(node.output[1:]):
        return None
    while may_sum or may_activate:
        found = _next_activation(around, output) if may_activate else None
        if found is not None:
            nodes += found.nodes
            output, function, may_activate = found.output, found.function, False
            continue
        added = _shortcut(around, output, index) if may_sum else None
        if added is None:
            break
        where, residual = added
        residual_last = not may_activate
        nodes.append(where)
        output, may_sum = around.nodes[where].output[0], False
    if len(nodes) == 1:
        return None
    return Fusion(tuple(nodes), output, function, residual, residual_last)


def _shortcut(around: Surroundings, value: str, index: int) -> tuple[int, str] | None:
    """Return the node that adds something of the same shape to ``value``, and what it adds."""
    readers = _inner_readers(around, value)
    if len(readers) != 1:
        return None
    node = around.nodes[readers[0]]
    if not _is(node, ("Add", "Sum")) or len(node.input) != 2:
        return None
    (other,) = [name for name in node.input if name != value] or [value]
    shape = around.shape(value)
    made_later = any(other in later.output for later in around.nodes[index:])
    if made_later or shape is None or around.shape(other) != shape:
        return None
    return readers[0], other


def _next_activation(around: Surroundings, value: str) -> Fusion | None:
    """Return the activation that alone reads ``value``."""
    readers = _inner_readers(around, value)
    for reader in readers:
        found = _activation(around, value, reader)
        if found is not None and set(readers) <= set(found.nodes):
            return found
    return None


def _activation(around: Surroundings, value: str, index: int) -> Fusion | None:
    """Return the activation of ``value`` that begins with node ``index``."""
    node = around.nodes[index]
    function = function_of(node, around.constant)
    if function is None or node.input[0] != value:
        return None
    group = next((found for item in _GROUPS if (found := _group(around, item, index))), None)
    return group or Fusion((index,), node.output[0], function)


def _group(around: Surroundings, group: _Group, index: int) -> Fusion | None:
    """Return the nodes from ``index`` on that are ``group``."""
    x = around.nodes[index].input[0]
    nodes: list[int] = []
    following = [index]
    for operator in group.chain:
        if len(following) != 1 or around.nodes[following[0]].op_type != operator:
            return None
        nodes += following
        following = list(_inner_readers(around, around.nodes[nodes[-1]].output[0]))
    first = function_of(around.nodes[index], around.constant)
    if len(following) != 1 or first is None or not _close(first, group.needed):
        return None
    last = around.nodes[following[0]]
    factors = sorted((x, around.nodes[nodes[-1]].output[0]))
    if not _is(last, ("Mul",)) or sorted(last.input) != factors:
        return None
    return Fusion((*nodes, following[0]), last.output[0], Function(group.kind))


def _close(one: Function, other: Function) -> bool:
    # Parameters are float32 in a file.
    return one.kind == other.kind and all(
        abs(a - b) < 1e-6 for a, b in ((one.alpha, other.alpha), (one.beta, other.beta))
    )


def _inner_readers(around: Surroundings, value: str) -> Sequence[int]:
    """Return the readers of ``value``, none where something outside needs it."""
    return () if value in around.kept else tuple(dict.fromkeys(around.readers.get(value, ())))
