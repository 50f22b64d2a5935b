"""Chunks: a layer with large weights, split along its output channels.

A weight of 18 MB would need 18 MB of ring otherwise. A chunk reads the whole input and writes a range of
the output, so its channels must lie together there.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import onnx

from models.compiler.alias import SUM_INPUT
from models.compiler.graph import NCHWC_DOMAIN, Graph
from models.compiler.slices import CutPiece, Slice
from models.manifest import SPAN_ALIGNMENT
from models.target import Target

# MLAS computes up to this many channel blocks at once: chunks of fewer are slower.
BLOCKS_AT_ONCE = 4

_MIN_CHUNK_BYTES = 64 << 10
_MAX_CHUNK_BYTES = 4 << 20
_CHUNKS_A_MODEL = 16


def default_chunk_bytes(weight_bytes: int) -> int:
    """Return the chunk limit for a network: a sixteenth of it, from 64 KiB to 4 MiB."""
    return min(max(weight_bytes // _CHUNKS_A_MODEL, _MIN_CHUNK_BYTES), _MAX_CHUNK_BYTES)


def rows_a_chunk(
    graph: Graph, node: onnx.NodeProto, target: Target, chunk_bytes: int
) -> int | None:
    """Return how many output channels a chunk of ``node`` has, or None where it stays whole."""
    blocked = node.domain == NCHWC_DOMAIN
    # Where the block is not known (models/target.py) a cut could fall inside one.
    if not _is_splittable(graph, node) or (blocked and target.block == 1):
        return None
    if graph.weight_bytes(node) <= chunk_bytes:
        return None
    weight = graph.constants[node.input[1]]
    rows = weight.shape[0]
    row_bytes = weight.nbytes // rows
    block = target.block if blocked else 1
    # Cuts fall between channel blocks and on the file's alignment.
    step = math.lcm(block, SPAN_ALIGNMENT // math.gcd(SPAN_ALIGNMENT, row_bytes))
    fast_step = math.lcm(step, BLOCKS_AT_ONCE * block)
    fitting = chunk_bytes // row_bytes
    unit = fast_step if fast_step <= fitting else step
    # At least two: without its bias the weight alone may fit.
    count = max(-(-rows // max(fitting // unit * unit, unit)), 2)
    even = -(-rows // count // unit) * unit
    return even if even < rows else None


def _is_splittable(graph: Graph, node: onnx.NodeProto) -> bool:
    """Return whether output channels of ``node`` are computed apart and lie apart in memory."""
    if node.op_type not in ("Conv", "FusedConv", "Gemm", "FusedGemm"):
        return False
    values = {item.name: item for item in node.attribute}
    result = graph.values[node.output[0]].shape
    vectors = [name for name in node.input[2:SUM_INPUT] if name]
    if (
        len(node.input) < 2
        or result[0] != 1
        or len(set(node.input)) != len(node.input)
        or not all(graph.is_weight(name) for name in (node.input[1], *vectors))
    ):
        return False
    if node.op_type in ("Conv", "FusedConv"):
        grouped = "group" in values and values["group"].i != 1
        return not grouped and not (node.op_type == "FusedConv" and len(node.input) > SUM_INPUT)
    bias = graph.array(vectors[0]).shape if vectors else ()
    by_row = "transB" in values and values["transB"].i == 1
    swapped = "transA" in values and values["transA"].i == 1
    return by_row and not swapped and (not bias or bias[-1] == result[1])


def chunks(graph: Graph, index: int, rows: int) -> Iterator[CutPiece]:
    """Yield the chunks of node ``index``: ``rows`` output channels each, the last one the rest."""
    node = graph.nodes[index]
    weight = graph.constants[node.input[1]]
    for first in range(0, weight.shape[0], rows):
        count = min(rows, weight.shape[0] - first)
        x, matrix, *rest = (
            _part(graph, name, position, first, count)
            for position, name in enumerate(node.input)
            if name
        )
        result = _part(graph, node.output[0], SUM_INPUT, first, count)
        vectors = tuple(part for part in rest if graph.is_weight(part.name))
        yield CutPiece(
            index,
            index + 1,
            {part.name: part for part in (x, matrix, *rest)},
            {node.output[0]: result},
            (matrix,),
            vectors,
        )


def _part(graph: Graph, name: str, position: int, first: int, count: int) -> Slice:
    """Return what a chunk sees of an input (position 0 whole) or, as SUM_INPUT, of the output."""
    array = graph.array(name)
    whole = Slice(name, array.shape)
    if position == 0:
        return whole
    axis = 0 if position == 1 or len(array.shape) == 1 else 1
    channel_bytes = array.n_bytes // array.shape[axis]
    shape = (*array.shape[:axis], count, *array.shape[axis + 1 :])
    return replace(whole, shape=shape, offset=first * channel_bytes)
