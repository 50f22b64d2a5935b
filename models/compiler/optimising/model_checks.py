"""What ONNX Runtime does not check itself: divisors, masks, and shapes that have to agree.

A value in the memory of another relies on both shapes; a node whose operands do not fit can
only fail.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from models.compiler.analysis.node_groups import name
from models.errors import CompileError, OnnxError
from models.graphs.graph import Graph, all_graphs
from models.graphs.ranges import range_of
from models.network.catalogue import traits_of
from models.network.names import Op
from models.network.node import Node


def check_scales(graph: Graph, path: Path) -> None:
    """Check that no constant scale makes what cannot be rounded to integers.

    Raises:
        OnnxError: one is zero, negative, or not finite; the message names the node.
    """
    for inner in all_graphs(graph):
        for node in inner.nodes:
            divisor = _divisor(node)
            scales = inner.constants.get(divisor)
            if scales is None or range_of(scales) is not None:
                continue
            numbers = scales.astype(np.float64)
            wrong = numbers[~((numbers > 0) & np.isfinite(numbers))]
            if len(wrong):
                operator = node.operator.rpartition(".")[2]
                raise OnnxError(
                    f"{path}: node {node.label!r} ({operator}): scale {divisor!r} is "
                    f"{wrong[0]:g}; it must be above zero"
                )


def _divisor(node: Node) -> str:
    """Return the scale of what ``node`` makes; "": there is none.

    Those of what it reads may be zero: all is zero then, as exporters write it of channels without weights.
    """
    traits = traits_of(node.operator)
    for position in traits.scales(len(node.inputs))[-1:]:
        operand = traits.operand(position)
        if operand is not None and operand.of_result:
            return node.inputs[position]
    return ""


# The output of Attention that has scores, and its mode in which they are as masks leave them; its inputs
# that mask, or may.
_SCORES, _MASKED, _MASK, _COUNTS = 3, 2, 3, 6


def check_scores(graph: Graph, path: Path) -> None:
    """Check that no output has scores of Attention behind a mask.

    Where it masks they are -inf to ONNX; to ONNX Runtime they are the lowest number that there is.

    Raises:
        CompileError: one has; the message names the node.
    """
    for node in graph.live():
        if node.operator != Op.Attention or not any(node.outputs[_SCORES : _SCORES + 1]):
            continue
        if node.attributes.get("qk_matmul_output_mode", 0) == _MASKED and any(_masks(node, graph)):
            raise CompileError(
                f"{path}: {name(node)}: where it masks, ONNX Runtime's scores (qk_matmul_output_mode 2) "
                "are not -inf; modes 0, 1 and 3 can be computed"
            )


def _masks(node: Node, graph: Graph) -> Iterator[bool]:
    """Yield whether what masks scores of ``node``, other than by a sum, is there."""
    yield bool(node.attributes.get("is_causal", 0))
    yield any(node.inputs[_COUNTS:])
    yield any(graph.array(mask).dtype == "bool" for mask in node.inputs[_MASK : _MASK + 1] if mask)


# Whether shapes agree: what kernels check when they run, and memory never checks.

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]


def check_agreement(nodes: Iterable[Node], shapes: Shapes, path: Path) -> None:
    """Check ``nodes`` as far as their operands are among ``shapes``, which have those of constants, too.

    Raises:
        CompileError: one contradicts another; the message names the node.
    """
    for node in nodes:
        faults = (check(node, shapes) for check in _checks(node))
        fault = next(filter(None, faults), None)
        if fault is not None:
            raise CompileError(
                f"{path}: {name(node)}: {fault}; name the lengths that it was exported for (--shape), "
                "or export it again"
            )


def _reshape(node: Node, shapes: Shapes) -> str | None:
    before, after = shapes.get(node.inputs[0]), shapes.get(node.output)
    if before is None or after is None or math.prod(before) == math.prod(after):
        return None
    return (
        f"{math.prod(before)} values of shape {list(before)} cannot have shape {list(after)}, "
        f"which is {math.prod(after)} values"
    )


def _concat(node: Node, shapes: Shapes) -> str | None:
    parts = [shapes.get(item) for item in node.inputs]
    whole = shapes.get(node.output)
    if whole is None or None in parts:
        return None
    total = sum(math.prod(part) for part in parts if part is not None)
    if total == math.prod(whole):
        return None
    return (
        f"its inputs have {total} values together, its output {list(whole)} has {math.prod(whole)}"
    )


def _channels(node: Node, shapes: Shapes) -> str | None:
    x, w = (shapes.get(item) for item in node.inputs[:2])
    if x is None or w is None or len(x) < 3:
        return None
    group = node.attributes.get("group", 1)
    wanted = w[0] if node.operator == Op.ConvTranspose else w[1] * group
    if x[1] == wanted:
        return None
    groups = f" in {group} groups" if group > 1 else ""
    return f"its input {list(x)} has {x[1]} channels, its weights {list(w)}{groups} take {wanted}"


def _filters(node: Node, shapes: Shapes) -> str | None:
    """A bias has a number for each filter: ONNX Runtime checks it when it runs, other kernels never."""
    result, traits = shapes.get(node.output), traits_of(node.operator)
    if result is None or len(result) < 3:
        return None
    filters = result[-1] if traits.channels_last else result[1]
    for position, value in enumerate(node.inputs):
        operand, shape = traits.operand(position), shapes.get(value)
        if operand is None or operand.role != "bias" or shape is None or shape == (filters,):
            continue
        return f"its bias {list(shape)} is not one number for each of its {filters} filters"
    return None


def _per_channel(node: Node, shapes: Shapes) -> str | None:
    """A norm's parameters have a number for each channel."""
    x = shapes.get(node.inputs[0])
    if x is None or len(x) < 2 or not node.attributes.get("spatial", 1):
        return None
    for value in node.inputs[1:]:
        shape = shapes.get(value)
        if shape is not None and shape != x[1:2]:
            return f"its parameter {value!r} {list(shape)} is not one number for each of {x[1]} channels"
    return None


def _empty(node: Node, shapes: Shapes) -> str | None:
    """A convolution or pooling of no pixels: ONNX Runtime refuses it when it runs."""
    x, y = shapes.get(node.inputs[0]), shapes.get(node.output)
    for kind, shape in (("input", x), ("output", y)):
        if shape is not None and 0 in shape[1:]:
            return f"its {kind} {list(shape)} is empty"
    return None


def _bias(node: Node, shapes: Shapes) -> str | None:
    bias = shapes.get(node.inputs[2]) if len(node.inputs) > 2 else None
    result = shapes.get(node.output)
    if bias is None or result is None or len(result) != 2:
        return None
    padded = (1,) * (2 - len(bias)) + bias
    if len(padded) == 2 and all(
        own in (1, whole) for own, whole in zip(padded, result, strict=True)
    ):
        return None
    return f"its bias {list(bias)} cannot be added to {list(result)}"


def _dilated(node: Node, shapes: Shapes) -> str | None:
    """A pool that pads by itself: ONNX Runtime ignores its dilations, and makes other rows."""
    given = node.attributes
    padding = given.get("auto_pad", "NOTSET")
    if not padding.startswith("SAME") or max(given.get("dilations", (1,))) == 1:
        return None
    return f"auto_pad {padding} with dilations {list(given['dilations'])}; with pads it can be computed"


def _checks(node: Node) -> Iterator[Callable[[Node, Shapes], str | None]]:
    """Yield the checks that apply to ``node``."""
    traits = traits_of(node.operator)
    if traits.reshapes:
        yield _reshape
    if traits.computes(Op.Concat):
        yield _concat
    if traits.access == "windowed" and traits.layer and traits.elements == "computed":
        if not traits.is_blocked:  # there weights have other shapes
            yield _channels
            yield _filters
        yield _empty
    if traits.computes(Op.BatchNormalization) or traits.computes(Op.InstanceNormalization):
        yield _per_channel
    if traits.computes(Op.MaxPool):
        yield _dilated
    if traits.computes(Op.Gemm):
        yield _bias
