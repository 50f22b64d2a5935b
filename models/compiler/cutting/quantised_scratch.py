"""What ONNX Runtime's quantised kernels allocate while they run.

Sums are 32-bit integers in memory of their own before they are rounded; a convolution has its weights
turned round and its input unrolled, and where channels come first both of its tensors turned, too.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import onnx

from models.compiler.analysis.graph import Graph
from models.graphs.nodes import attributes

_SUM_BYTES = 4
_POINTER_BYTES = 8
# Panels of matrices that a thread packs and keeps: measured 47 KB. And numbers for each channel.
_BESIDE_BYTES = 64 << 10
_PLANE_RANK = 4
# So many results of a maximum are made at once, by the places of what they are made of.
_POOLED_AT_ONCE = 512


def quantised_bytes(graph: Graph, node: onnx.NodeProto) -> int:
    """Return a bound on what ``node`` allocates if it is quantised and allocates anything, else 0."""
    bound = _BOUNDS.get(node.op_type)
    if bound is None or not {node.input[0], node.output[0]} <= graph.values.keys():
        return 0
    return bound(graph, node) + _BESIDE_BYTES


def _of_convolution(graph: Graph, node: onnx.NodeProto) -> int:
    given = attributes(node)
    before, after = graph.array(node.input[0]), graph.array(node.output[0])
    weight = graph.array(node.input[3])
    last, group = bool(given.get("channels_last", 0)), given.get("group", 1)
    depthwise = weight.shape[1] == 1 and weight.shape[0] == group
    pixels, kernel = math.prod(after.shape[1:-1] if last else after.shape[2:]), weight.shape[2:]
    unrolled = math.prod(kernel) * pixels * (_POINTER_BYTES if depthwise else weight.shape[1])
    if len(weight.shape) != _PLANE_RANK:  # of all groups at once
        unrolled *= group
    if not depthwise and math.prod(kernel) == 1 and not _moves(given):
        unrolled = 0
    turned = 0 if last else before.n_bytes + after.n_bytes
    return weight.n_bytes + unrolled + turned + _SUM_BYTES * math.prod(after.shape[1:])


def _moves(given: Mapping[str, Any]) -> bool:
    """Return whether a kernel of one pixel reads other pixels than it writes."""
    steps, pads = set(given.get("strides", ())), set(given.get("pads", ()))
    return not steps <= {1} or not pads <= {0} or given.get("auto_pad", "NOTSET") != "NOTSET"


def _of_integer_convolution(graph: Graph, node: onnx.NodeProto) -> int:
    weight, after = graph.array(node.input[1]), graph.array(node.output[0])
    return math.prod(weight.shape[1:]) * math.prod(after.shape[2:])


def _sums(graph: Graph, node: onnx.NodeProto) -> int:
    return _SUM_BYTES * math.prod(graph.array(node.output[0]).shape)


def _quantised_input(graph: Graph, node: onnx.NodeProto) -> int:
    return math.prod(graph.array(node.input[0]).shape)


def _of_pool(graph: Graph, node: onnx.NodeProto) -> int:
    kernel: int = math.prod(attributes(node)["kernel_shape"])
    pixels = math.prod(graph.array(node.output[0]).shape[1:-1])
    return _POINTER_BYTES * kernel * min(pixels, _POOLED_AT_ONCE)


def _of_average(graph: Graph, node: onnx.NodeProto) -> int:
    """Bound the sums of channels, and the zeros that stand behind the last pixels or channels."""
    return _sums(graph, node) + _quantised_input(graph, node)


def _as_floats(graph: Graph, node: onnx.NodeProto) -> int:
    return _SUM_BYTES * _quantised_input(graph, node)


_BOUNDS: Mapping[str, Callable[[Graph, onnx.NodeProto], int]] = {
    "QLinearConv": _of_convolution,
    "ConvInteger": _of_integer_convolution,
    "QGemm": _sums,
    "QLinearMatMul": _sums,
    "DynamicQuantizeMatMul": _quantised_input,
    "NhwcMaxPool": _of_pool,
    "QLinearAveragePool": _as_floats,
    "QLinearGlobalAveragePool": _of_average,
}
