"""What sessions need beside weights and arena: bounds and measurements made at compile time."""

import gc
import math

from models.compiler.cut import CutPiece, inner_bytes
from models.compiler.graph import NCHWC_DOMAIN, Graph, attributes, label
from models.errors import CompileError
from models.heap import heap_bytes
from models.sessions import SessionError, open_piece, use_threads

# ONNX Runtime's plain convolution unrolls its input by segments of this size, one a thread.
_SEGMENT_BYTES = 128 << 10
# What the bindings of a piece cost, measured: its names, pointers and shapes.
BINDING_BYTES = 3 << 10


def scratch_bytes(graph: Graph, pieces: list[CutPiece]) -> int:
    """Return a bound on what any one piece allocates while it runs."""
    return max(
        (inner_bytes(graph, piece) + _workspace_bytes(graph, piece) for piece in pieces), default=0
    )


def _workspace_bytes(graph: Graph, piece: CutPiece) -> int:
    """Bound the im2col buffer of convolutions outside the blocked layout (MlasConvPrepare)."""
    largest = 0
    for node in graph.nodes[piece.first_node : piece.end_node]:
        if node.op_type not in ("Conv", "FusedConv") or node.domain == NCHWC_DOMAIN:
            continue
        shape = graph.array(node.input[1]).shape
        kernel = math.prod(shape[1:])
        pixels = math.prod(graph.values[node.output[0]].shape[2:])
        pointwise = math.prod(attributes(node).get("kernel_shape", shape[2:])) == 1
        whole = 0 if pointwise else 4 * kernel * pixels
        largest = max(largest, whole, use_threads() * _SEGMENT_BYTES)
    return largest


def session_bytes(graph: Graph, pieces: list[CutPiece], graphs: dict[bytes, int]) -> int:
    """Load every distinct piece and return the heap that the sessions and bindings take.

    Raises:
        CompileError: ONNX Runtime cannot load a piece.
    """
    gc.collect()
    before = heap_bytes()
    sessions = []
    for serialised, first in graphs.items():
        try:
            sessions.append(open_piece(serialised))
        except SessionError as exc:
            node = graph.nodes[pieces[first].first_node]
            raise CompileError(f"node {label(node)!r} ({node.op_type}): {exc}") from exc
    after = heap_bytes()
    measured = after - before if after is not None and before is not None else 0
    return max(measured, 0) + BINDING_BYTES * len(pieces)
