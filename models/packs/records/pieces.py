"""What is launched: graphs, the values between them, pieces, how they join, and the layers they are of."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import PositiveInt

from models.network.fields import Array, Count, Name, Record, Shared
from models.packs.records.programs import Elementwise

TENSOR_ALIGNMENT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRange(Record):
    """One serialised piece in pieces.bin; ``session_bytes`` bounds the heap of its session."""

    offset: Count
    length: PositiveInt
    session_bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Value(Array):
    """An activation between pieces; with ``parent`` it lives ``offset`` bytes inside that value.

    A loose one is an input or output of the model and has no memory of the plan.
    """

    name: Name
    parent: Count | None = None
    offset: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand(Array):
    """A byte range that a piece reads or writes: of value ``index`` or of span ``index``."""

    kind: Literal["value", "span"]
    index: Count
    offset: Count = 0


Operands = Annotated[tuple[Annotated[Operand, Shared], ...], Shared]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentPiece(Record):
    """What cannot be streamed: nodes that run as one piece with their weights inside, and why."""

    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    weight_bytes: Count
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrolled(Record):
    """What a piece with plain convolutions allocates, by the number of threads (models/packs/unrolling.py).

    ``beside_bytes``, and the more of ``whole_bytes``, their unrolled input, and a segment for each of up to
    ``segments`` threads.
    """

    beside_bytes: Count
    whole_bytes: Count
    segments: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece(Record):
    """One step: graph ``graph`` on ``inputs`` (x0, x1, ...) giving ``outputs`` (y0, y1, ...).

    Its weights are the ``n_spans`` spans from ``span`` on: one in a manifest, several in a piece that
    models/packs/joining.py joined; their operand reaches from the first into the last. ``scratch_bytes``
    bounds what the kernel allocates while it runs, with as many threads as the compiler's machine has;
    with others, ``unrolled`` does. ``elementwise``: all that it computes, where that is operators on
    elements that are worth one pass over them. ``quantised``: the number of the task of quantised layers
    that it is.
    """

    graph: Count
    span: Count | None
    n_spans: PositiveInt = 1
    inputs: Operands
    outputs: Operands
    resident: ResidentPiece | None = None
    scratch_bytes: Count = 0
    unrolled: Annotated[Unrolled, Shared] | None = None
    elementwise: Annotated[Elementwise, Shared] | None = None
    quantised: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedPieces(Record):
    """``n_chunks`` consecutive pieces as one kernel: graph ``graph`` on their operands joined.

    ``scratch_bytes``: of the kernel, where it allocates more than any of its chunks; else 0.
    ``elementwise``: as of a piece.
    """

    graph: Count
    n_chunks: PositiveInt
    scratch_bytes: Count = 0
    unrolled: Annotated[Unrolled, Shared] | None = None
    elementwise: Annotated[Elementwise, Shared] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative(Record):
    """The pieces [first_piece, end_piece), the chunks of a layer, in fewer kernels with the same bits."""

    first_piece: Count
    end_piece: Count
    joined: Annotated[tuple[Annotated[JoinedPieces, Shared], ...], Shared]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer(Record):
    """A node of the optimised graph, or several that are fused; its pieces are [first_piece, end_piece)."""

    name: Name
    operator: Name
    weight_bytes: Count
    first_piece: Count
    end_piece: Count
