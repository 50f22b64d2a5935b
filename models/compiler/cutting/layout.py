"""Place the weights of pieces in weights.bin: spans in execution order, nothing twice in a span."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.compiler.analysis.pieces import CutPiece, Slice
from models.graphs.graph import Graph
from models.packs.records.pieces import TENSOR_ALIGNMENT
from models.packs.records.spans import SPAN_ALIGNMENT


def align(n_bytes: int, alignment: int) -> int:
    """Return ``n_bytes`` rounded up to a multiple of ``alignment``."""
    return -(-n_bytes // alignment) * alignment


@dataclass
class PlannedSpan:
    """One span: where it starts, how long it is, and the slices in it by offset from its start.

    It has at most one slice of a constant.
    """

    offset: int
    resident: bool = False
    length: int = 0
    parts: dict[Slice, int] = field(default_factory=dict)

    def add(self, part: Slice, n_bytes: int, same: int | None = None) -> None:
        """Add ``part``, at its end or where the ``same`` bytes are."""
        if part in self.parts:
            return
        self.parts[part] = align(self.length, TENSOR_ALIGNMENT) if same is None else same
        self.length = max(self.length, self.parts[part] + n_bytes)

    def find(self, part: Slice) -> int | None:
        """Return where ``part`` starts, which may be longer or shorter than what was added."""
        for held, offset in self.parts.items():
            if held.name == part.name and held.offset <= part.offset:
                return offset + part.offset - held.offset
        return None

    def close(self) -> None:
        self.length = align(self.length, SPAN_ALIGNMENT)

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True)
class SpanLayout:
    """``spans`` of the file; ``span_of[i]`` is the span that piece ``i`` streams, or None."""

    spans: list[PlannedSpan]
    span_of: list[int | None]

    def locate(self, part: Slice, own: int | None) -> tuple[int, int]:
        """Return span and offset of a weight slice that a piece reads whose first span is ``own``."""
        if own is not None and (offset := self.spans[own].find(part)) is not None:
            return own, offset
        offset = self.spans[0].find(part)
        assert offset is not None, part  # what is not streamed is shared
        return 0, offset

    def file_offsets(self, graph: Graph, starts: Sequence[int]) -> dict[str, int]:
        """Return where constants start that lie whole in the file; ``starts``: of spans there.

        The chunks of a weight follow each other, so the place of the first is that of the whole; unless
        some of them lie elsewhere, where an earlier span has the same bytes.
        """
        begins: dict[str, int] = {}
        known: dict[str, int] = {}  # so many bytes of a constant lie together
        for span, start in zip(self.spans, starts, strict=True):
            for part, offset in span.parts.items():
                begin = start + offset - part.offset
                first = begins.setdefault(part.name, begin)
                before = known.get(part.name, 0)
                if first == begin and part.offset <= before:
                    known[part.name] = max(before, part.offset + _n_bytes(graph, part))
        return {
            name: begin
            for name, begin in begins.items()
            if known.get(name) == graph.constants[name].nbytes
        }


def lay_out(graph: Graph, pieces: list[CutPiece]) -> SpanLayout:
    """Return the layout; the vectors that chunks share come first, in one resident span."""
    spans: list[PlannedSpan] = []
    shared = PlannedSpan(0, resident=True)
    known: dict[bytes, int] = {}
    # A vector is shared whole, so that model.onnx can refer to it as one tensor.
    for name in dict.fromkeys(part.name for piece in pieces for part in piece.shared_weights):
        constant = graph.constants[name]
        shared.add(Slice(name, constant.shape), constant.nbytes, known.get(constant.tobytes()))
        known[constant.tobytes()] = shared.parts[Slice(name, constant.shape)]
    if shared.parts:
        shared.close()
        spans.append(shared)
    span_of: list[int | None] = []
    for piece in pieces:
        if not piece.weights:
            span_of.append(None)
            continue
        span_of.append(len(spans))
        spans.append(planned_span(graph, piece, spans[-1].end if spans else 0))
    return SpanLayout(spans, span_of)


def planned_span(graph: Graph, piece: CutPiece, offset: int = 0) -> PlannedSpan:
    """Return the span that ``piece`` streams, at ``offset`` in the file."""
    span = PlannedSpan(offset)
    for part in piece.weights:
        span.add(part, _n_bytes(graph, part))
    span.close()
    return span


def _n_bytes(graph: Graph, part: Slice) -> int:
    return math.prod(part.shape) * graph.constants[part.name].dtype.itemsize


def slice_bytes(graph: Graph, part: Slice) -> NDArray[np.uint8]:
    """Return the bytes of a slice of a constant, uint8; copies no more than these."""
    constant: NDArray[Any] = graph.constants[part.name]
    n_bytes = _n_bytes(graph, part)
    first = part.offset
    if not constant.flags.c_contiguous:
        # Whole rows: a matrix that was transposed is not copied for each of its chunks.
        row_bytes = constant.nbytes // constant.shape[0]
        start = first // row_bytes
        constant = constant[start : -(-(first + n_bytes) // row_bytes)]
        first -= start * row_bytes
    flat = np.ascontiguousarray(constant).reshape(-1).view(np.uint8)
    return flat[first : first + n_bytes]


def span_bytes(graph: Graph, span: PlannedSpan) -> NDArray[np.uint8]:
    """Return the content of ``span``, padding zero, uint8 [span.length]."""
    content = np.zeros(span.length, np.uint8)
    for part, offset in span.parts.items():
        data = slice_bytes(graph, part)
        content[offset : offset + len(data)] = data
    return content
