"""Chunks: a layer with large weights, split along its output channels.

A weight of 18 MB would need 18 MB of ring otherwise. A chunk reads the whole input and writes a range of
the output, so its channels must lie together there. Weights are stored in the finest chunks; several
of them that follow each other can also be computed as one, with the same bits
(docs/reference/pack-manifest.md).

A layer is one node, or a convolution and the operators on elements that are fused with it; then its chunks
read a range of what is added, too.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from models.compiler.analysis.pieces import CutAlternative, CutPiece, Slice
from models.compiler.cutting.layout import planned_span, slice_bytes
from models.graphs.graph import Graph
from models.network.catalogue import traits_of
from models.network.fields import stretches
from models.network.names import NCHWC, Op
from models.network.node import Node
from models.network.operators.convolution import ADDEND
from models.packs.records.spans import SPAN_ALIGNMENT
from models.packs.target import Target
from models.runtime.kernels import kernel_of
from models.runtime.sessions import SessionError, open_piece

# Whether a layer gives the same bits in coarser chunks: computed and compared where it is not certain.
#
# Kernels of the blocked layout add up each output channel by itself. Others are matrix products, which
# ONNX Runtime divides among threads by the size of the whole, and with it the order of long sums.

#: A piece and what it is serialised.
Serialised = tuple[CutPiece, bytes]
_Bytes = NDArray[np.uint8]


class Equality:
    """Compares chunks of layers of ``graph``; layers of the same shapes once."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._known: dict[tuple[tuple[object, ...], ...], bool] = {}

    def holds(self, finest: Sequence[Serialised], coarser: Sequence[Serialised]) -> bool:
        """Return whether ``coarser`` pieces give what the ``finest`` of the same node give, bit for bit."""
        node = self._graph.nodes[finest[0][0].first_node]
        if node.domain == NCHWC:
            return True
        key = (_key(finest), _key(coarser))
        if key not in self._known:
            self._known[key] = self._same(finest, coarser)
        return self._known[key]

    def _same(self, finest: Sequence[Serialised], coarser: Sequence[Serialised]) -> bool:
        inputs = self._inputs(finest[0][0])
        try:
            one, other = (self._outputs(pieces, inputs) for pieces in (finest, coarser))
        except SessionError:
            return False
        return all(np.array_equal(one[name], other[name]) for name in one)

    def _inputs(self, piece: CutPiece) -> dict[str, _Bytes]:
        """Return numbers for the values that ``piece`` reads, as they are in memory."""
        generator = np.random.default_rng(0)
        arrays = [(name, self._graph.values.get(name)) for name in piece.inputs]
        return {
            name: _flat(generator.standard_normal(array.shape).astype(array.dtype))
            for name, array in arrays
            if array is not None
        }

    def _outputs(
        self, pieces: Sequence[Serialised], inputs: Mapping[str, _Bytes]
    ) -> dict[str, _Bytes]:
        """Return the values that ``pieces`` write, each as a whole.

        Raises:
            SessionError: one of them cannot be loaded or run.
        """
        values = self._graph.values
        results = {name: np.zeros(values[name].n_bytes, np.uint8) for name in pieces[0][0].outputs}
        sessions: dict[bytes, ort.InferenceSession] = {}
        for piece, data in pieces:
            session = sessions.get(data) or open_piece(data)
            sessions[data] = session
            feeds = {
                port.name: self._array(part, inputs)
                for port, part in zip(session.get_inputs(), piece.inputs.values(), strict=True)
            }
            arrays = _run(session, feeds)
            for part, array in zip(piece.outputs.values(), arrays, strict=True):
                results[part.name][part.offset :][: array.nbytes] = _flat(array)
        return results

    def _array(self, part: Slice, inputs: Mapping[str, _Bytes]) -> NDArray[Any]:
        dtype = np.dtype(self._graph.array(part.name).dtype)
        if part.name in inputs:
            held = inputs[part.name][part.offset :][: math.prod(part.shape) * dtype.itemsize]
        else:
            held = slice_bytes(self._graph, part)
        return held.view(dtype).reshape(part.shape)


def _key(pieces: Sequence[Serialised]) -> tuple[object, ...]:
    """Return what decides about bits: kernels, and the sizes of what they take."""
    return tuple(
        (data, *(part.shape for part in (*piece.inputs.values(), *piece.outputs.values())))
        for piece, data in pieces
    )


def _run(session: ort.InferenceSession, feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    try:
        return list(session.run(None, feeds))
    except Exception as exc:  # ONNX Runtime's errors share no base class of their own
        raise SessionError(str(exc)) from exc


def _flat(array: NDArray[Any]) -> _Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


# How large chunks are, and where they begin.

# MLAS computes up to this many channel blocks at once: chunks of fewer are slower.
_BLOCKS_AT_ONCE = (4, 2, 1)
# Rows of a matrix that MLAS adds up in the same order; the order of a last single row is another.
_ROWS_AT_ONCE = 4
# A GPU's kernels compute tiles of 32 rows: a chunk that ends inside one leaves threads idle.
_ROWS_AT_ONCE_ON_GPU = (8, 4, 2, 1)
# A rest of fewer channels joins the chunk before it: products of so few are added up in another order.
_SMALLEST_REST = 16

_MIN_CHUNK_BYTES = 64 << 10
_MAX_CHUNK_BYTES = 512 << 10
_CHUNKS_A_MODEL = 256
# What a chunk makes for an operator that is fused with it lies in memory that is there all the time.
_MAX_INNER_BYTES = 1 << 20


def default_chunk_bytes(weight_bytes: int) -> int:
    """Return the finest chunk for a network: a 256th of it, from 64 KiB to 512 KiB."""
    return min(max(weight_bytes // _CHUNKS_A_MODEL, _MIN_CHUNK_BYTES), _MAX_CHUNK_BYTES)


def rows_a_chunk(graph: Graph, layer: range, target: Target, chunk_bytes: int) -> int | None:
    """Return how many output channels a finest chunk of the nodes ``layer`` has; None: it stays whole."""
    node = graph.nodes[layer.start]
    blocked = node.domain == NCHWC
    # Where the block is not known (models/packs/target.py) a cut could fall inside one.
    if not _is_splittable(graph, node) or (blocked and target.block == 1):
        return None
    # A range of channels of what a reorder makes does not lie together.
    if any(traits_of(graph.nodes[index].operator).function is None for index in layer[1:]):
        return None
    weight = graph.constants[node.inputs[1]]
    n_bytes = _inner_bytes(graph, layer, target)
    if n_bytes > _MAX_INNER_BYTES:
        chunk_bytes = min(chunk_bytes, weight.nbytes * _MAX_INNER_BYTES // n_bytes)
    if graph.weight_bytes(node) <= chunk_bytes:
        return None
    rows = weight.shape[0]
    row_bytes = weight.nbytes // rows
    block = target.block if blocked else _ROWS_AT_ONCE
    at_once = _BLOCKS_AT_ONCE if target.capability is None else _ROWS_AT_ONCE_ON_GPU
    # Cuts fall between channel blocks and on the file's alignment.
    step = math.lcm(block, SPAN_ALIGNMENT // math.gcd(SPAN_ALIGNMENT, row_bytes))
    fitting = chunk_bytes // row_bytes
    units = (math.lcm(step, block * blocks) for blocks in at_once)
    unit = next((unit for unit in units if unit <= fitting), step)
    # At least two: without its bias the weight alone may fit.
    count = max(-(-rows // max(fitting // unit * unit, unit)), 2)
    even = -(-rows // count // unit) * unit
    return even if len(_starts(even, rows)) > 1 else None


def least_chunk_bytes(
    graph: Graph, pieces: Sequence[CutPiece], layers: Mapping[int, range], target: Target
) -> int:
    """Return the most streamed weights of one piece if all of ``layers``, by first node, were cut finest.

    Pieces of several layers stay as they are: they are tiny.
    """
    least = 0
    for first, run in itertools.groupby(pieces, lambda piece: piece.first_node):
        cut = [piece for piece in run if piece.weights]
        layer = layers[first]
        alone = bool(cut) and cut[0].end_node == layer.stop
        rows = rows_a_chunk(graph, layer, target, 1) if alone else None
        finest = cut if rows is None else list(chunks(graph, layer, rows))
        least = max([least, *(planned_span(graph, piece).length for piece in finest)])
    return least


def _starts(rows: int, total: int) -> list[int]:
    """Return the first output channel of each chunk of ``rows``."""
    return [first for first in range(0, total, rows) if total - first >= min(rows, _SMALLEST_REST)]


def _is_splittable(graph: Graph, node: Node) -> bool:
    """Return whether output channels of ``node`` are computed apart and lie apart in memory."""
    traits = traits_of(node.operator)
    if not (traits.computes(Op.Conv) or traits.computes(Op.Gemm)):
        return False
    result = graph.values[node.output].shape
    vectors = [name for name in node.inputs[2:ADDEND] if name]
    if (
        len(node.inputs) < 2
        or result[0] != 1
        or len(set(node.inputs)) != len(node.inputs)
        or not all(graph.is_weight(name) for name in (node.inputs[1], *vectors))
    ):
        return False
    given = node.attributes
    if traits.computes(Op.Conv):
        return bool(given.get("group", 1) == 1)
    bias = graph.array(vectors[0]).shape if vectors else ()
    by_row = given.get("transB", 0) == 1 and not given.get("transA", 0)
    return by_row and (not bias or bias[-1] == result[1])


def alternatives(
    graph: Graph, pieces: Sequence[CutPiece], target: Target
) -> Iterator[CutAlternative]:
    """Yield, for each layer that ``pieces`` has in chunks, 2, 4, 8, ... of them as one, and all of them."""
    for _, numbers in itertools.groupby(range(len(pieces)), lambda i: pieces[i].first_node):
        run = list(numbers)
        first = pieces[run[0]]
        node = graph.nodes[first.first_node]
        if len(run) < 2 or not first.weights or not _is_splittable(graph, node):
            continue
        layer = range(first.first_node, first.end_node)
        total = sum(_channels(pieces[number]) for number in run)
        for rows in _coarser(_channels(first), total):
            if rows * _inner_bytes(graph, layer, target) > total * _MAX_INNER_BYTES:
                break
            yield CutAlternative(run[0], run[-1] + 1, tuple(chunks(graph, layer, rows)))


def _inner_bytes(graph: Graph, layer: range, target: Target) -> int:
    """Return what the nodes ``layer`` make for each other in memory."""
    if len(layer) == 1 or target.capability is not None:
        return 0
    return graph.values[graph.nodes[layer.start].output].n_bytes


def _channels(chunk: CutPiece) -> int:
    (weight,) = chunk.weights
    return weight.shape[0]


def _coarser(rows: int, total: int) -> Iterator[int]:
    while len(_starts(2 * rows, total)) > 1:
        rows *= 2
        yield rows
    yield total


def chunks(graph: Graph, layer: range, rows: int) -> Iterator[CutPiece]:
    """Yield the chunks of the nodes ``layer``: ``rows`` output channels each, the last one the rest."""
    node = graph.nodes[layer.start]
    axes = _channel_axes(graph, layer)
    result = graph.nodes[layer[-1]].made[0]
    total = graph.constants[node.inputs[1]].shape[0]
    starts = _starts(rows, total)
    for first, end in itertools.pairwise([*starts, total]):
        parts = {name: _part(graph, name, axis, first, end) for name, axis in axes.items()}
        matrix = parts[node.inputs[1]]
        yield CutPiece(
            layer.start,
            layer.stop,
            parts,
            {result: _part(graph, result, 1, first, end)},
            (matrix,),
            tuple(
                part for part in parts.values() if part is not matrix and graph.is_weight(part.name)
            ),
        )


def _channel_axes(graph: Graph, layer: range) -> dict[str, int | None]:
    """Return what the nodes ``layer`` read from outside, and where output channels lie in each.

    None: every channel needs all of it.
    """
    node, *followers = (graph.nodes[index] for index in layer)
    axes: dict[str, int | None] = {node.inputs[0]: None, node.inputs[1]: 0}
    for name in filter(None, node.inputs[2:]):
        axes[name] = 0 if len(graph.array(name).shape) == 1 else 1
    computed = {name for index in layer for name in graph.nodes[index].made}
    read = (name for follower in followers for name in follower.reads)
    axes.update((name, 1) for name in read if name in graph.values and name not in computed)
    return axes


def _part(graph: Graph, name: str, axis: int | None, first: int, end: int) -> Slice:
    """Return the channels [first, end) of ``name``, or all of it; what is before ``axis`` is 1."""
    array = graph.array(name)
    if axis is None:
        return Slice(name, array.shape)
    channel_bytes = array.n_bytes // array.shape[axis]
    shape = (*array.shape[:axis], end - first, *array.shape[axis + 1 :])
    return Slice(name, shape, first * channel_bytes)


# A constant that is added to all tokens, such as what says their positions.

_TOKENS = 3


def element_chunks(graph: Graph, layer: range, chunk_bytes: int) -> Iterator[CutPiece]:
    """Yield ranges of elements of the nodes ``layer``, one that computes with as many weights.

    None, where it is something else or has no more than ``chunk_bytes``: then it stays as it is.
    """
    node = graph.nodes[layer.start]
    kernel = kernel_of(node.operator)
    weights = [name for name in node.inputs if graph.is_weight(name)]
    values = [name for name in node.inputs if name in graph.values]
    if (
        len(layer) > 1
        or (len(weights), len(values), len(node.inputs), len(node.made)) != (1, 1, 2, 1)
        or traits_of(node.operator).function is None
        or kernel is None
        or not kernel.is_even
    ):
        return
    value, constant, result = map(graph.array, (*values, *weights, node.output))
    if (
        value != result
        or len(value.shape) != _TOKENS
        or (constant.dtype, constant.n_bytes) != (value.dtype, value.n_bytes)
        or not stretches(constant.shape, value.shape)
        or value.n_bytes <= chunk_bytes
    ):
        return
    count = value.n_bytes // value.item_bytes
    step = max(chunk_bytes // SPAN_ALIGNMENT, 1) * SPAN_ALIGNMENT // value.item_bytes
    for start in range(0, count, step):
        shape, offset = (min(step, count - start),), start * value.item_bytes
        slices = {name: Slice(name, shape, offset) for name in (*node.inputs, node.output)}
        yield CutPiece(
            layer.start,
            layer.stop,
            {name: slices[name] for name in (*values, *weights)},
            {node.output: slices[node.output]},
            (slices[weights[0]],),
        )
