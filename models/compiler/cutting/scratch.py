"""What sessions need beside weights and arena, bounded at compile time."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx

from models.compiler.analysis.graph import NCHWC_DOMAIN, CutPiece, Graph
from models.compiler.cutting.cut import inner_bytes, inner_values
from models.compiler.cutting.piece_models import known_bytes
from models.graphs.nodes import all_graphs, attributes, made, reads, subgraphs
from models.network.operators.convolution import CONVOLUTIONS, Convolution
from models.packs.records.pieces import Unrolled
from models.packs.records.row_parts import SHARING_THREADS, unrolled_bytes
from models.runtime.sessions import use_threads

# What ONNX Runtime 1.31 takes on the heap: a session with its first node, each further node. Measured
# 24 to 35 KB and 3 KB; an engine measures its own at load, and a test holds the bound against it.
SESSION_BYTES = 34 << 10
NODE_BYTES = 4 << 10


# What a piece that a GPU runs takes in Python, and each of its nodes: launches, their arguments, names.
# Measured 9 KB, and 1.8 KB a launch; a node may need two.
PROGRAM_BYTES = 10 << 10
LAUNCHES_BYTES = 4 << 10


#: Returns what a serialised piece allocates on the target's device while it runs, bytes; None: it runs on
#: the CPU there, too. With its flag set, by the algorithms that row operators take.
Measure = Callable[[bytes, bool], int | None]
_SUM_BYTES = 4
_POINTER_BYTES = 8
# Panels of matrices that a thread packs and keeps: measured 47 KB. And numbers for each channel.
_BESIDE_BYTES = 64 << 10
_PLANE_RANK = 4
# So many results of a maximum are made at once, by the places of what they are made of.
_POOLED_AT_ONCE = 512


def runs_on_cpu(_piece: bytes, _on_rows: bool) -> None:
    """Be the ``Measure`` of a target whose pieces all run on the CPU."""


@dataclass(frozen=True)
class Sizes:
    """Bounds what pieces of ``graph`` take: where ``measure`` has a piece, on the target's device."""

    graph: Graph
    measure: Measure

    def scratch_bytes(self, piece: CutPiece, data: bytes) -> int:
        """Return a bound on what ``piece``, which is ``data``, allocates while it runs.

        A resident piece also makes values whose size is unknown; they are not counted.
        """
        measured = self._measured(piece, data)
        if measured is not None:
            return measured
        return unrolled_bytes(_unrolled(self.graph, piece), use_threads())

    def unrolled(self, piece: CutPiece, data: bytes) -> Unrolled | None:
        """Return what that is with another number of threads; None: the same."""
        unrolled = _unrolled(self.graph, piece)
        if not unrolled.segments or self._measured(piece, data) is not None:
            return None
        return unrolled

    def session_bytes(self, piece: CutPiece, data: bytes) -> int:
        """Bound the heap of the session of ``piece``, whose bytes ``data`` are held beside it."""
        if self._measured(piece, data) is not None:
            n_nodes = piece.end_node - piece.first_node
            return PROGRAM_BYTES + LAUNCHES_BYTES * n_nodes + len(data)
        return _session_bytes(self.graph, piece, len(data))

    def _measured(self, piece: CutPiece, data: bytes) -> int | None:
        return self.measure(data, False) if piece.region is None else None


def _made_bytes(graph: Graph, piece: CutPiece) -> int:
    return inner_bytes(graph, piece) if piece.region is None else known_bytes(graph, piece)


def _unrolled(graph: Graph, piece: CutPiece) -> Unrolled:
    """Bound the unrolled buffers of convolutions outside the blocked layout, and what other kernels copy.

    MlasConvPrepare unrolls the input of a convolution, all of it where it has fewer pixels than filters; a
    transposed one is computed unrolled and folded.
    """
    largest = segments = 0
    for index in range(piece.first_node, piece.end_node):
        node = graph.nodes[index]
        own = max(_copied_bytes(graph, node), quantised_bytes(graph, node))
        if own:
            largest = max(largest, own - _later_bytes(graph, piece, index))
        if "Conv" not in node.op_type or node.domain == NCHWC_DOMAIN:
            continue
        if not {node.input[0], node.output[0]} <= set(graph.values):
            continue
        weights = node.input[1]
        shape = piece.inputs.get(weights, graph.array(weights)).shape  # of a chunk
        if node.op_type == "ConvTranspose":
            pixels = math.prod(graph.array(node.input[0]).shape[2:])
            largest = max(largest, 4 * math.prod(shape[1:]) * pixels)
        if node.op_type not in CONVOLUTIONS:
            continue
        images, channels = graph.values[node.input[0]].shape[:2]
        groups = channels // shape[1]
        operator = graph.operator(node)
        pointwise = isinstance(operator, Convolution) and operator.is_pointwise
        pixels = math.prod(graph.values[node.output[0]].shape[2:])
        if pixels < shape[0] // groups and not pointwise:
            largest = max(largest, 4 * math.prod(shape[1:]) * pixels)
        images *= groups
        segments = max(segments, SHARING_THREADS, images)
    return Unrolled(beside_bytes=_made_bytes(graph, piece), whole_bytes=largest, segments=segments)


def _later_bytes(graph: Graph, piece: CutPiece, index: int) -> int:
    """Return what is made inside ``piece`` of what node ``index`` makes: not there yet while that runs."""
    behind = set(made(graph.nodes[index]))
    later = set[str]()
    for node in graph.nodes[index + 1 : piece.end_node]:
        if not behind.isdisjoint(reads(node)):
            behind.update(made(node))
            later.update(made(node))
    return sum(graph.values[name].n_bytes for name in later & inner_values(graph, piece))


def _copied_bytes(graph: Graph, node: onnx.NodeProto) -> int:
    """Bound what a kernel copies: LRN padded squares and their sums, a softmax its tensors, turned."""
    if node.op_type not in ("LRN", "Softmax", "LogSoftmax") or node.input[0] not in graph.values:
        return 0
    value, given = graph.values[node.input[0]], attributes(node)
    if node.op_type == "LRN":
        padded = (value.shape[1] + given["size"] - 1) * math.prod(value.shape[2:])
        return value.n_bytes + 4 * int(padded)
    along_last = given.get("axis", -1) in (-1, len(value.shape) - 1)
    return 0 if along_last else 2 * value.n_bytes


def _session_bytes(graph: Graph, piece: CutPiece, n_bytes: int) -> int:
    """Bound the heap that ONNX Runtime takes for ``piece``, whose graph has ``n_bytes``."""
    nodes = graph.nodes[piece.first_node : piece.end_node]
    if piece.region is None:
        return SESSION_BYTES + NODE_BYTES * len(nodes) + n_bytes
    # Its weights are in the message while it is loaded, and in the session. A subgraph is a session.
    held = (graph for node in nodes for graph in subgraphs(node))
    inner = [graph for outer in held for graph in all_graphs(outer)]
    count = len(nodes) + sum(len(graph.node) for graph in inner)
    return SESSION_BYTES * (1 + len(inner)) + NODE_BYTES * count + 3 * n_bytes


def quantised_bytes(graph: Graph, node: onnx.NodeProto) -> int:
    """Return a bound on what ``node`` allocates if it is quantised and allocates anything, else 0.

    Sums are 32-bit integers in memory of their own before they are rounded; a convolution has its weights
    turned round and its input unrolled, and where channels come first both of its tensors turned, too.
    """
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
