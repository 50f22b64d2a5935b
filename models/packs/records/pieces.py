"""What is launched: graphs, the values between them, pieces, how they join, and the layers they are of."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from models.network.activations import Arithmetic, Kind
from models.network.fields import Array, Count, Name
from models.records import SHARED, Bounds, PositiveInt, Record

# Programs: what operators on elements that follow each other compute, as the compiler found it.
#
# A program is known once: devices bind it, and look into no graph for it.

T = TypeVar("T")

#: Of 32 bits.
LARGEST = float(np.finfo(np.float32).max)

#: A number that is one of 32 bits, too; None: no bound.
Parameter = Annotated[float, Bounds(ge=-LARGEST, le=LARGEST)] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementStep(Record):
    """``kind`` of the values ``reads``: one, or two at the same place.

    Values are numbered: what the program reads, then what each step makes. ``numbers``: the parameters of
    an activation; of arithmetic of one value, what it has for the second.
    """

    kind: Kind | Arithmetic
    reads: tuple[Count, ...]
    numbers: tuple[Parameter, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementProgram(Record):
    """``steps`` in order on ``n_inputs`` values; ``results``: those that other pieces or the caller read.

    A result that is an input is a copy of it.
    """

    n_inputs: Count
    steps: tuple[ElementStep, ...] = ()
    results: tuple[Count, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Elementwise(Record):
    """Program number ``program`` on the inputs ``reads``, whose results are the outputs ``makes``.

    Without ``makes`` there is nothing to do.
    """

    program: Count
    reads: tuple[Count, ...] = ()
    makes: tuple[Count, ...] = ()

    def ports(self, inputs: Sequence[T], outputs: Sequence[T]) -> tuple[list[T], list[T]]:
        """Return those of ``inputs`` that it reads, and of ``outputs`` that it makes, in its order."""
        return [inputs[place] for place in self.reads], [outputs[place] for place in self.makes]


TENSOR_ALIGNMENT = 64
#: Rows of a table are read in pages, each with a checksum of its own.
PAGE_BYTES = 4096
#: What says which rows of a table.
INDEX_TYPES = ("int32", "int64")


def max_pages(row_bytes: int) -> int:
    """Return the most pages that a row touches, wherever it begins."""
    return (row_bytes + PAGE_BYTES - 2) // PAGE_BYTES + 1


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


class ValueBytes(NamedTuple, Generic[T]):
    """Bytes [start, end) of value ``root``, by number or name, which lies in no other; or of a span."""

    root: T
    start: int
    end: int

    def overlaps(self, other: "ValueBytes[T]") -> bool:
        """Return whether two places share a byte."""
        return self.root == other.root and self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand(Array):
    """A byte range that a piece reads or writes: of value ``index`` or of span ``index``."""

    kind: Literal["value", "span"]
    index: Count
    offset: Count = 0


Operands = Annotated[tuple[Annotated[Operand, SHARED], ...], SHARED]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentPiece(Record):
    """What cannot be streamed: nodes that run as one piece with their weights inside, and why."""

    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    weight_bytes: Count
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrolled(Record):
    """What a piece allocates, by the number of threads (row_parts.py).

    With plain convolutions ``beside_bytes``, and the more of ``whole_bytes``, their unrolled input, and a
    segment for each of up to ``segments`` threads. Where that is more, what was measured:
    ``measured_bytes``, and ``thread_bytes`` for each thread but the first.
    """

    beside_bytes: Count
    whole_bytes: Count
    segments: Count
    measured_bytes: Count = 0
    thread_bytes: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece(Record):
    """One step: graph ``graph`` on ``inputs`` (x0, x1, ...) giving ``outputs`` (y0, y1, ...).

    ``span``: its weights. ``scratch_bytes`` bounds what the kernel allocates while it runs, with as many
    threads as the compiler's machine has; with others, ``unrolled`` does. ``elementwise``: all that it
    computes, where that is operators on elements that are worth one pass over them. ``quantised``: the
    number of the task of quantised layers that it is. ``page_checksums``: of a Gather of rows of a table,
    which is all that the span holds, so that rows can be read alone: uint64, the xxh3-64 of each
    ``PAGE_BYTES`` of the span.
    """

    graph: Count
    span: Count | None
    inputs: Operands
    outputs: Operands
    resident: ResidentPiece | None = None
    scratch_bytes: Count = 0
    unrolled: Annotated[Unrolled, SHARED] | None = None
    elementwise: Annotated[Elementwise, SHARED] | None = None
    quantised: Count | None = None
    page_checksums: Operand | None = None

    @property
    def streamed_span(self) -> int | None:
        """The span that comes whole for each request; None: there is none, or rows of it are read."""
        return self.span if self.page_checksums is None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedPieces(Record):
    """``n_chunks`` consecutive pieces as one kernel: graph ``graph`` on their operands joined.

    ``scratch_bytes``: of the kernel, where it allocates more than any of its chunks; else 0.
    ``elementwise``: as of a piece.
    """

    graph: Count
    n_chunks: PositiveInt
    scratch_bytes: Count = 0
    unrolled: Annotated[Unrolled, SHARED] | None = None
    elementwise: Annotated[Elementwise, SHARED] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative(Record):
    """The pieces [first_piece, end_piece), the chunks of a layer, in fewer kernels with the same bits."""

    first_piece: Count
    end_piece: Count
    joined: Annotated[tuple[Annotated[JoinedPieces, SHARED], ...], SHARED]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer(Record):
    """A node of the optimised graph, or several that are fused; its pieces are [first_piece, end_piece)."""

    name: Name
    operator: Name
    weight_bytes: Count
    first_piece: Count
    end_piece: Count


# How operands of the chunks of a layer become those of one piece.


def merged_operands(operands: Sequence[tuple[Operand, ...]]) -> tuple[Operand, ...]:
    """Return the operands of pieces that follow each other, their inputs or outputs, as those of one."""
    return tuple(_merged_operand(column) for column in zip(*operands, strict=True))


def _merged_operand(parts: Sequence[Operand]) -> Operand:
    """Return the range that ``parts`` make together: they are all equal, or follow each other."""
    first = parts[0]
    axis = channel_axis(first)
    if axis is None or all(part == first for part in parts):
        return first
    channels = sum(part.shape[axis] for part in parts)
    shape = (*first.shape[:axis], channels, *first.shape[axis + 1 :])
    return replace(first, shape=shape)


def channel_axis(operand: Operand) -> int | None:
    """Return the axis along which ranges that follow each other are one array: the first above 1."""
    return next((axis for axis, length in enumerate(operand.shape) if length > 1), None)
