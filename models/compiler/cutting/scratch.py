"""What sessions need beside weights and arena, bounded at compile time.

A kernel may allocate memory of its own while it runs. ``FORMULAS`` bounds it for kernels that were
measured; a test runs all of them. A piece with any other, or on other types of elements, is run and
measured (meter.py): what is not counted is never taken to be nothing.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from models.compiler.analysis.node_groups import name
from models.compiler.analysis.pieces import CutPiece, Slice
from models.compiler.cutting.cut import inner_bytes, inner_values
from models.compiler.cutting.meter import InputsError, Meter, MeterError
from models.compiler.cutting.piece_models import known_bytes
from models.errors import CompileError
from models.graphs.graph import Graph, all_graphs
from models.network.catalogue import traits_of
from models.network.fields import DTYPES
from models.network.names import Op
from models.network.node import Node
from models.network.operators.convolution import Convolution
from models.packs.records.pieces import Unrolled
from models.packs.records.row_parts import SHARING_THREADS, unrolled_bytes
from models.runtime.allocations import Tensor
from models.runtime.kernels import Scratch, kernel_of
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
#: Bounds what the kernel of a node allocates; None: not known for what the node says.
Formula = Callable[[Graph, Node], int | None]
_USUAL_TYPES = DTYPES - {"float16", "float64"}
_SUM_BYTES = 4
_POINTER_BYTES = 8
# Panels of matrices that a thread packs and keeps: measured 47 KB. And numbers for each channel.
_BESIDE_BYTES = 64 << 10
_PLANE_RANK = 4
_PAIR = 2
# For each line and column that is interpolated: two places, two weights. Measured 16 to 20.
_LINE_BYTES = 24
# So many results of a maximum are made at once, by the places of what they are made of.
_POOLED_AT_ONCE = 512


def runs_on_cpu(_piece: bytes, _on_rows: bool) -> None:
    """Be the ``Measure`` of a target whose pieces all run on the CPU."""


@dataclass(frozen=True)
class Sizes:
    """Bounds what pieces of ``graph`` take: where ``measure`` has a piece, on the target's device.

    ``meter`` runs those on the CPU whose operators have no formula. ``warn`` is called with what of them
    cannot be counted.
    """

    graph: Graph
    measure: Measure
    meter: Meter
    warn: Callable[[str], None] = lambda text: None

    def scratch_bytes(self, piece: CutPiece, data: bytes) -> int:
        """Return a bound on what ``piece``, which is ``data``, allocates while it runs.

        Values whose size only a run gives count as large as they were on drawn inputs.

        Raises:
            CompileError: it has no formula, and cannot be measured.
        """
        measured = self._measured(piece, data)
        if measured is not None:
            return measured
        return unrolled_bytes(self._allocated(piece, data), use_threads())

    def unrolled(self, piece: CutPiece, data: bytes) -> Unrolled | None:
        """Return what that is with another number of threads, or was measured; None: neither.

        Raises as ``scratch_bytes``.
        """
        if self._measured(piece, data) is not None:
            return None
        unrolled = self._allocated(piece, data)
        return unrolled if unrolled.segments or unrolled.measured_bytes else None

    def _allocated(self, piece: CutPiece, data: bytes) -> Unrolled:
        unrolled = _unrolled(self.graph, piece)
        if piece.region is None and _has_formulas(self.graph, piece):
            return unrolled
        bound = None if piece.region else self._tensors(piece.outputs)
        try:
            allocated = self.meter.allocated(data, self._tensors(piece.inputs), bound)
        except MeterError as exc:
            first = name(self.graph.nodes[piece.first_node])
            text = (
                f"what the piece from {first} on allocates in addition to its tensors cannot be "
                f"measured: {exc}"
            )
            if isinstance(exc, InputsError) and self._has_dynamic_outputs(piece):
                self.warn(f"{text}; values whose size only a run gives are not counted")
                return unrolled
            raise CompileError(text) from exc
        return replace(
            unrolled, measured_bytes=allocated.n_bytes, thread_bytes=allocated.thread_bytes
        )

    def _has_dynamic_outputs(self, piece: CutPiece) -> bool:
        nodes = self.graph.nodes[piece.first_node : piece.end_node]
        return any(output in self.graph.dynamic for node in nodes for output in node.made)

    def _tensors(self, slices: Mapping[str, Slice]) -> list[Tensor]:
        return [(self.graph.array(item.name).dtype, item.shape) for item in slices.values()]

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
        n_bytes = kernel_bytes(graph, node) or 0
        if n_bytes:
            largest = max(largest, n_bytes - _later_bytes(graph, piece, index))
        traits = traits_of(node.operator)
        convolves = traits.computes(Op.Conv) and not traits.is_blocked
        if not convolves and not traits.computes(Op.ConvTranspose):
            continue
        if not {node.inputs[0], node.output} <= set(graph.values):
            continue
        weights = node.inputs[1]
        shape = piece.inputs.get(weights, graph.array(weights)).shape  # of a chunk
        if not convolves:
            pixels = math.prod(graph.array(node.inputs[0]).shape[2:])
            largest = max(largest, 4 * math.prod(shape[1:]) * pixels)
            continue
        images, channels = graph.values[node.inputs[0]].shape[:2]
        groups = channels // shape[1]
        operator = graph.operator(node)
        pointwise = isinstance(operator, Convolution) and operator.is_pointwise
        pixels = math.prod(graph.values[node.output].shape[2:])
        if pixels < shape[0] // groups and not pointwise:
            largest = max(largest, 4 * math.prod(shape[1:]) * pixels)
        images *= groups
        segments = max(segments, SHARING_THREADS, images)
    return Unrolled(beside_bytes=_made_bytes(graph, piece), whole_bytes=largest, segments=segments)


def _later_bytes(graph: Graph, piece: CutPiece, index: int) -> int:
    """Return what is made inside ``piece`` of what node ``index`` makes: not there yet while that runs."""
    behind = set(graph.nodes[index].made)
    later = set[str]()
    for node in graph.nodes[index + 1 : piece.end_node]:
        if not behind.isdisjoint(node.reads):
            behind.update(node.made)
            later.update(node.made)
    return sum(graph.values[name].n_bytes for name in later & inner_values(graph, piece))


def _session_bytes(graph: Graph, piece: CutPiece, n_bytes: int) -> int:
    """Bound the heap that ONNX Runtime takes for ``piece``, whose graph has ``n_bytes``."""
    nodes = graph.nodes[piece.first_node : piece.end_node]
    if piece.region is None:
        return SESSION_BYTES + NODE_BYTES * len(nodes) + n_bytes
    # Its weights are in the message while it is loaded, and in the session. A body is a session.
    _, *inner = all_graphs(replace(graph, nodes=nodes))
    count = len(nodes) + sum(len(body.nodes) for body in inner)
    return SESSION_BYTES * (1 + len(inner)) + NODE_BYTES * count + 3 * n_bytes


def kernel_bytes(graph: Graph, node: Node) -> int | None:
    """Return a bound on what the kernel of ``node`` allocates; None: no formula is known.

    What plain convolutions unroll is not in it (``Unrolled``).
    """
    kernel = kernel_of(node.operator)
    formula = None if kernel is None else FORMULAS.get(kernel.scratch)
    names = (name for name in (*node.inputs, *node.outputs) if name)
    if formula is None or not (
        node.operator == Op.Cast or all(_is_usual(graph, name) for name in names)
    ):
        return None
    return formula(graph, node)


def accepts_any_size(graph: Graph, piece: CutPiece) -> bool:
    """Return whether one session may serve ``piece`` and equal ones of other sizes.

    Of other operators ONNX Runtime may infer a wrong shape where it does not know those of inputs: of
    Attention, with heads in one dimension, that of its result.
    """
    nodes = graph.nodes[piece.first_node : piece.end_node]
    kernels = (kernel_of(node.operator) for node in nodes)
    return all(kernel is not None and kernel.scratch in FORMULAS for kernel in kernels)


def _has_formulas(graph: Graph, piece: CutPiece) -> bool:
    nodes = graph.nodes[piece.first_node : piece.end_node]
    return all(kernel_bytes(graph, node) is not None for node in nodes)


def allocates_nothing(graph: Graph, nodes: Iterable[Node]) -> bool:
    """Return whether kernels of ``nodes`` allocate next to nothing but what convolutions unroll."""
    return all(
        (n_bytes := kernel_bytes(graph, node)) is not None and n_bytes <= _BESIDE_BYTES
        for node in nodes
    )


def _is_usual(graph: Graph, name: str) -> bool:
    """Return whether kernels take the type of ``name`` as it is: others convert what they read."""
    if name not in graph.values and name not in graph.constants:
        return False
    return graph.array(name).dtype in _USUAL_TYPES


def _nothing(_graph: Graph, _node: Node) -> int:
    return 0


def _of_two(_graph: Graph, node: Node) -> int | None:
    """A third operand is joined with what the first two make, in memory of its own."""
    return 0 if len(node.inputs) <= _PAIR else None


def _of_resize(graph: Graph, node: Node) -> int | None:
    """Bound where lines and columns lie; cubic kernels remember much, antialiasing ones take two steps."""
    given = node.attributes
    mode = given.get("mode", "nearest")
    if mode == "nearest":
        return 0
    if mode != "linear" or given.get("antialias"):
        return None
    lines = sum(graph.array(node.output).shape) + sum(graph.array(node.inputs[0]).shape)
    return _LINE_BYTES * lines


def _padded_squares(graph: Graph, node: Node) -> int:
    value = graph.array(node.inputs[0])
    padded = (value.shape[1] + node.attributes["size"] - 1) * math.prod(value.shape[2:])
    return value.n_bytes + 4 * int(padded)


def _turned(graph: Graph, node: Node) -> int:
    """Bound the tensors of a softmax along another axis than the last, both turned."""
    value = graph.array(node.inputs[0])
    along_last = node.attributes.get("axis", -1) in (-1, len(value.shape) - 1)
    return 0 if along_last else 2 * value.n_bytes


def _with_bias(graph: Graph, node: Node) -> int:
    """Bound the sum of what is read and a bias."""
    biased = len(node.inputs) > 1 and node.inputs[1]
    return graph.array(node.output).n_bytes if biased else 0


# Quantised operators: sums are 32-bit integers in memory of their own before they are rounded; a
# convolution has its weights turned round and its input unrolled, and where channels come first both of its
# tensors turned, too.


def _plus_small_blocks(formula: Formula) -> Formula:
    def bound(graph: Graph, node: Node) -> int | None:
        n_bytes = formula(graph, node)
        return None if n_bytes is None else n_bytes + _BESIDE_BYTES

    return bound


def _of_convolution(graph: Graph, node: Node) -> int:
    given = node.attributes
    before, after = graph.array(node.inputs[0]), graph.array(node.output)
    weight = graph.array(node.inputs[3])
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


def _of_integer_convolution(graph: Graph, node: Node) -> int:
    weight, after = graph.array(node.inputs[1]), graph.array(node.output)
    return math.prod(weight.shape[1:]) * math.prod(after.shape[2:])


def _sums(graph: Graph, node: Node) -> int:
    return _SUM_BYTES * math.prod(graph.array(node.output).shape)


def _quantised_input(graph: Graph, node: Node) -> int:
    return math.prod(graph.array(node.inputs[0]).shape)


def _of_pool(graph: Graph, node: Node) -> int:
    kernel: int = math.prod(node.attributes["kernel_shape"])
    pixels = math.prod(graph.array(node.output).shape[1:-1])
    return _POINTER_BYTES * kernel * min(pixels, _POOLED_AT_ONCE)


def _of_average(graph: Graph, node: Node) -> int:
    """Bound the sums of channels, and the zeros that stand behind the last pixels or channels."""
    return _sums(graph, node) + _quantised_input(graph, node)


def _as_floats(graph: Graph, node: Node) -> int:
    return _SUM_BYTES * _quantised_input(graph, node)


#: By what rows of kernels say (models/runtime/kernels.py).
FORMULAS: Mapping[Scratch, Formula] = {
    "none": _nothing,
    "average": _plus_small_blocks(_of_average),
    "biased": _with_bias,
    "convolution": _plus_small_blocks(_of_convolution),
    "floats": _plus_small_blocks(_as_floats),
    "input": _plus_small_blocks(_quantised_input),
    "lines": _of_resize,
    "pair": _of_two,
    "pooled": _plus_small_blocks(_of_pool),
    "squares": _padded_squares,
    "sums": _plus_small_blocks(_sums),
    "turned": _turned,
    "unrolled": _plus_small_blocks(_of_integer_convolution),
}
