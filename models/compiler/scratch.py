"""What sessions need beside weights and arena, bounded at compile time."""

import math

from models.compiler.cut import CutPiece, inner_bytes
from models.compiler.graph import NCHWC_DOMAIN, Graph, attributes, label
from models.errors import CompileError
from models.sessions import SessionError, open_piece, use_threads

# ONNX Runtime's plain convolution unrolls its input by segments of this size, one a thread.
_SEGMENT_BYTES = 128 << 10
# What ONNX Runtime 1.31 takes on the heap: a session with its first node, each further node, and the
# binding of a piece (names, pointers, shapes). Measured 24 to 35 KB, 3 KB and 2.3 KB; an engine
# measures its own at load, and a test holds the bound against it.
SESSION_BYTES = 34 << 10
NODE_BYTES = 4 << 10
BINDING_BYTES = 3 << 10


def scratch_bytes(graph: Graph, pieces: list[CutPiece]) -> int:
    """Return a bound on what any one piece allocates while it runs."""
    return max(
        (inner_bytes(graph, piece) + _workspace_bytes(graph, piece) for piece in pieces), default=0
    )


def _workspace_bytes(graph: Graph, piece: CutPiece) -> int:
    """Bound the unrolled buffers of convolutions outside the blocked layout.

    MlasConvPrepare unrolls the input of a convolution; a transposed one is computed unrolled and folded.
    """
    largest = 0
    for node in graph.nodes[piece.first_node : piece.end_node]:
        if "Conv" not in node.op_type or node.domain == NCHWC_DOMAIN:
            continue
        shape = graph.array(node.input[1]).shape
        if node.op_type == "ConvTranspose":
            pixels = math.prod(graph.array(node.input[0]).shape[2:])
            largest = max(largest, 4 * math.prod(shape[1:]) * pixels)
        if node.op_type not in ("Conv", "FusedConv"):
            continue
        kernel = math.prod(shape[1:])
        pixels = math.prod(graph.values[node.output[0]].shape[2:])
        pointwise = math.prod(attributes(node).get("kernel_shape", shape[2:])) == 1
        whole = 0 if pointwise else 4 * kernel * pixels
        largest = max(largest, whole, use_threads() * _SEGMENT_BYTES)
    return largest


def session_bytes(pieces: list[CutPiece], graphs: dict[bytes, int]) -> int:
    """Bound the heap of one session for each of ``graphs`` and one binding for each piece."""
    nodes = sum(pieces[first].end_node - pieces[first].first_node for first in graphs.values())
    return (
        SESSION_BYTES * len(graphs)
        + NODE_BYTES * nodes
        + BINDING_BYTES * len(pieces)
        + sum(len(serialised) for serialised in graphs)
    )


def check_sessions(graph: Graph, pieces: list[CutPiece], graphs: dict[bytes, int]) -> None:
    """Load every distinct piece once, as an engine will; ``graphs`` gives each one's first piece.

    Raises:
        CompileError: ONNX Runtime cannot load a piece.
    """
    for serialised, first in graphs.items():
        try:
            open_piece(serialised)
        except SessionError as exc:
            node = graph.nodes[pieces[first].first_node]
            raise CompileError(f"node {label(node)!r} ({node.op_type}): {exc}") from exc
