"""The network of a pack as a device runs it: what planners, profiles, measurements and engines work on.

A manifest is the record of a file. A program is made of it once, when a model is opened (prepare.py).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, Self, TypeVar

from numpy.typing import NDArray

from models.network.operators.quantised import Quantised
from models.packs.manifest import Measures, checksum
from models.packs.pack import Pack
from models.packs.records.pieces import (
    ElementProgram,
    GraphRange,
    JoinedPieces,
    Layer,
    Operands,
    Piece,
    Unrolled,
    Value,
)
from models.packs.records.ports import Port
from models.packs.records.row_parts import Bottleneck, RowOperator, RowValue
from models.packs.records.spans import Span
from models.packs.target import Target
from pipeline.program.kernels import Joining, Kernel, OrtGraph, TableLookup

# Pieces with what runs them: part of a program, never of a file. A network has hundreds, made again for
# each decision: named tuples, which take a third of the time of data classes.


class PreparedPiece(NamedTuple):
    """A piece of a pack, or several that were joined (choice.py), and the ``kernel`` that runs it.

    ``graph`` is the graph that the compiler cut, by which profiles know it, whatever runs it. The weights
    are the ``n_spans`` spans from ``span`` on. ``scratch_bytes``: what the kernel allocates while it runs;
    ``unrolled``: of what that was counted. ``reads_rows``: the first input may stay with the request.
    """

    graph: int
    kernel: Kernel
    span: int | None
    n_spans: int
    inputs: Operands
    outputs: Operands
    scratch_bytes: int
    unrolled: Unrolled | None
    reads_rows: bool

    @property
    def streamed_span(self) -> int | None:
        """The first span that it streams."""
        return self.span

    @property
    def table_span(self) -> int | None:
        """The span of the table that it reads rows of, if it does."""
        return self.kernel.span if isinstance(self.kernel, TableLookup) else None

    @classmethod
    def of(cls, piece: Piece, kernel: Kernel) -> Self:
        """Return ``piece`` of a manifest as ``kernel`` runs it, with the scratch that the file says."""
        return cls(
            graph=piece.graph,
            kernel=kernel,
            span=piece.span,
            n_spans=1,
            inputs=piece.inputs,
            outputs=piece.outputs,
            scratch_bytes=piece.scratch_bytes,
            unrolled=piece.unrolled,
            reads_rows=False,
        )


class PreparedJoin(NamedTuple):
    """``n_chunks`` pieces that follow each other as one: its fields are those of that piece.

    ``scratch_bytes``: where it allocates more than any of its chunks; else 0.
    """

    graph: int
    kernel: Kernel
    n_chunks: int
    scratch_bytes: int
    unrolled: Unrolled | None

    @classmethod
    def of(cls, join: JoinedPieces, kernel: Kernel) -> Self:
        """Return ``join`` of a manifest as ``kernel`` runs it, with the scratch that the file says."""
        return cls(join.graph, kernel, join.n_chunks, join.scratch_bytes, join.unrolled)


class PreparedAlternative(NamedTuple):
    """The pieces [first_piece, end_piece), the chunks of a layer, in fewer kernels with the same bits."""

    first_piece: int
    end_piece: int
    joined: tuple[PreparedJoin, ...]


#: Where the first output of a piece begins: value and offset; None: it has none.
MadeAt = tuple[int, int] | None


def made_at(piece: PreparedPiece) -> MadeAt:
    """Return what distinguishes pieces whatever their size: where their output begins."""
    return (piece.outputs[0].index, piece.outputs[0].offset) if piece.outputs else None


# The program.

T = TypeVar("T")

#: What others say of a shape is no part of its checksum.
_OF_SHAPES = ("others", "reads_ahead")


@dataclass(frozen=True, eq=False, kw_only=True)
class Program(Measures):
    """The network of ``pack``, or a part of it: the pieces ``own``.

    A part keeps the numbers of the whole: ``pieces``, values, spans and row operators are all that there
    are. Pieces and the joined ones of ``alternatives`` name their kernels; ``row_kernels`` are those of the
    row operators. ``joins``: the graphs whose kernels may be one of several in a launch, and how.
    ``others``: the other shapes of the pack; who plans or runs one shape looks at none of them.
    """

    pack: Pack
    values: tuple[Value, ...]
    spans: tuple[Span, ...]
    pieces: tuple[PreparedPiece, ...]
    own: range
    alternatives: tuple[PreparedAlternative, ...]
    row_values: tuple[RowValue, ...]
    row_operators: tuple[RowOperator, ...]
    row_kernels: tuple[Kernel, ...]
    bottlenecks: tuple[Bottleneck, ...]
    layers: tuple[Layer, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    joins: Mapping[int, Joining]
    others: tuple["Program", ...] = ()
    #: Whether weights may be read for the next request: of several shapes that may be another's.
    reads_ahead: bool = True
    #: What was made of it, by what makes it.
    _made: dict[Callable[[Any], Any], Any] = field(default_factory=dict, init=False, repr=False)
    #: One for each block that plans it now: see ``letting_go``.
    planners: list[None] = field(default_factory=list, init=False, repr=False)

    @classmethod
    def as_compiled(cls, pack: Pack) -> Self:
        """Return the network of ``pack`` as its compiler left it: sessions run every piece."""
        manifest = pack.manifest
        resident = {piece.graph for piece in manifest.pieces if piece.resident is not None}
        kernels = [OrtGraph(graph, graph in resident) for graph in range(len(manifest.graphs))]
        # Equal ones are one object in a manifest, and here: of MobileNetV2's 283 there are 32.
        every = (join for item in manifest.alternatives for join in item.joined)
        merges = {id(join): PreparedJoin.of(join, kernels[join.graph]) for join in every}
        return cls(
            pack=pack,
            values=manifest.values,
            spans=manifest.spans,
            pieces=tuple(
                PreparedPiece.of(piece, kernels[piece.graph]) for piece in manifest.pieces
            ),
            own=range(len(manifest.pieces)),
            alternatives=tuple(
                PreparedAlternative(
                    item.first_piece,
                    item.end_piece,
                    tuple(merges[id(join)] for join in item.joined),
                )
                for item in manifest.alternatives
            ),
            row_values=manifest.row_values,
            row_operators=manifest.row_operators,
            row_kernels=tuple(kernels[item.graph] for item in manifest.row_operators),
            bottlenecks=manifest.bottlenecks,
            layers=manifest.layers,
            inputs=manifest.inputs,
            outputs=manifest.outputs,
            joins={},
        )

    def made(self, make: Callable[[Self], T]) -> T:
        """Return what ``make`` makes of the program; made once, until ``let_go``.

        Thread-safe: planning that was cancelled runs on beside the next.
        """
        if make not in self._made:
            return self._made.setdefault(make, make(self))  # type: ignore[no-any-return]
        return self._made[make]  # type: ignore[no-any-return]

    def let_go(self) -> None:
        """Let go of all that was made of it: a plan, once it is there, is all that is needed."""
        self._made.clear()

    @cached_property
    def checksum(self) -> str:
        """The checksum of all that planners look at: of the file, and of what was decided."""
        names = [each.name for each in fields(self) if each.init and each.name not in _OF_SHAPES]
        decided = [getattr(self, name) for name in names[1:]]
        rest = (self.graphs, self.programs, self.target)
        tokenizer = f" {self.tokenizer_bytes}" if self.tokenizer_bytes else ""
        return checksum(f"{self.name} {rest} {decided}{tokenizer}".encode())

    def by_shape(self) -> tuple["Program", ...]:
        """Return a program for each shape, the largest first, none of which has others."""
        if not self.others:
            return (self,)
        shapes = (replace(self, others=()), *self.others)
        return tuple(replace(shape, reads_ahead=False) for shape in shapes)

    @property
    def name(self) -> str:
        return self.pack.name

    @property
    def target(self) -> Target:
        return self.pack.manifest.target

    @property
    def on_host(self) -> bool:
        """Whether kernels compute in the host's own memory: the disk may write to the arena."""
        return self.target.capability is None

    @property
    def graphs(self) -> tuple[GraphRange, ...]:
        return self.pack.manifest.graphs

    @property
    def programs(self) -> tuple[ElementProgram, ...]:
        """What operators on elements compute."""
        return self.pack.manifest.programs

    @property
    def quantised(self) -> tuple[Quantised, ...]:
        return self.pack.manifest.quantised

    @property
    def least_chunk_bytes(self) -> int:
        return self.pack.manifest.least_chunk_bytes

    @property
    def tables(self) -> frozenset[int]:
        """The spans of which rows are read, unless a plan keeps them in memory."""
        return self.made(_tables)

    @property
    def tokenizer_bytes(self) -> int:
        """What the tokenizer of a model that takes texts takes; of its parts the first has it."""
        text = self.pack.manifest.text
        return 0 if text is None or self.own.start else text.memory_bytes

    @property
    def own_pieces(self) -> tuple[PreparedPiece, ...]:
        return self.pieces[self.own.start : self.own.stop]

    def layers_by_place(self) -> dict[MadeAt, Layer]:
        """Return, for what each piece makes (``made_at``), the first layer in it: its name for users."""
        layers: dict[MadeAt, Layer] = {}
        for layer in self.layers:
            for piece in self.pieces[layer.first_piece : layer.end_piece]:
                layers.setdefault(made_at(piece), layer)
        return layers

    def defaults(self) -> dict[str, NDArray[Any]]:
        """Return what the inputs hold that a request leaves out."""
        arrays = ((port.name, port.default_array()) for port in self.inputs)
        return {name: array for name, array in arrays if array is not None}


def _tables(program: Program) -> frozenset[int]:
    spans = (piece.table_span for piece in program.pieces)
    return frozenset(span for span in spans if span is not None)


@contextmanager
def letting_go(*programs: Program) -> Iterator[None]:
    """Let go of what was made of ``programs`` meanwhile; of several such blocks the last one does."""
    for program in programs:
        program.planners.append(None)
    try:
        yield
    finally:
        for program in programs:
            program.planners.pop()
            if not program.planners:
                program.let_go()
