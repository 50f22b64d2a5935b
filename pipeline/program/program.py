"""The network of a pack as a device runs it: what planners, profiles, measurements and engines work on.

A manifest is the record of a file. A program is made of it once, when a model is opened (prepare.py).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeVar

from numpy.typing import NDArray

from models.network.operators.quantised import Quantised
from models.packs.manifest import Measures, checksum
from models.packs.pack import Pack
from models.packs.records.pieces import (
    Alternative,
    ElementProgram,
    GraphRange,
    JoinedPieces,
    Layer,
    Piece,
    Value,
)
from models.packs.records.ports import Port
from models.packs.records.row_parts import Bottleneck, RowOperator, RowValue
from models.packs.records.spans import Span
from models.packs.target import Target

# What a device decides of the pieces of a pack that it is to run: part of a program, never of a file.
#
# Plans count by it, and kernels are bound by it; nothing looks again. A piece that a session runs as it
# was compiled is the file's own record.


@dataclass(frozen=True, slots=True, kw_only=True)
class Native:
    """How a device runs a piece by kernels of its own, with no session.

    ``by_rows``: its first input may stay with the request, of which it takes rows. ``workspace_bytes``:
    what it may take where more or less does. ``bound_bytes``: what each such piece takes when it is bound
    to memory; ``together_bytes``: what they all share, once for all of a model.
    """

    by_rows: bool = False
    workspace_bytes: int = 0
    bound_bytes: int = 0
    together_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeChain:
    """That a device runs ``elementwise`` of a piece or row operator in one pass, and what that takes.

    Alone it has no session and takes ``bound_bytes`` when it is bound; what makes ``shared_elements`` or
    more (None: nothing) is computed by threads for which a model takes ``together_bytes``, once. In one
    launch with others it is a node of their session, for its program on arrays of one list of shapes, and
    takes ``node_bytes``, as much as a session of its own; None: it is never one of several.
    """

    bound_bytes: int = 0
    shared_elements: int | None = None
    together_bytes: int = 0
    node_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NativePiece(Piece):
    """A quantised piece that kernels of the device run."""

    native: Native

    @classmethod
    def of(cls, piece: Piece, native: Native, scratch_bytes: int) -> "NativePiece":
        """Return ``piece`` as ``native``, whose kernel allocates ``scratch_bytes``."""
        known = {**_known(Piece, piece), "scratch_bytes": scratch_bytes, "unrolled": None}
        return cls(**known, native=native)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPiece(Piece):
    """A piece of operators on elements that runs in one pass."""

    chain: NativeChain

    @classmethod
    def of(cls, piece: Piece, chain: NativeChain) -> "ChainPiece":
        return cls(**_known(Piece, piece), chain=chain)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainJoined(JoinedPieces):
    """Pieces joined to one that runs in one pass."""

    chain: NativeChain

    @classmethod
    def of(cls, joined: JoinedPieces, chain: NativeChain) -> "ChainJoined":
        return cls(**_known(JoinedPieces, joined), chain=chain)


def takes_rows(piece: Piece) -> bool:
    """Return whether the first input of ``piece`` may stay with the request."""
    return isinstance(piece, NativePiece) and piece.native.by_rows


def _known(kind: type[Piece | JoinedPieces], record: Piece | JoinedPieces) -> dict[str, Any]:
    """Return the fields of a record as a file has it."""
    return {field.name: getattr(record, field.name) for field in fields(kind)}


#: Where the first output of a piece begins: value and offset; None: it has none.
MadeAt = tuple[int, int] | None


def made_at(piece: Piece) -> MadeAt:
    """Return what distinguishes pieces whatever their size: where their output begins."""
    return (piece.outputs[0].index, piece.outputs[0].offset) if piece.outputs else None


# The program.

T = TypeVar("T")


@dataclass(frozen=True, eq=False, kw_only=True)
class Program(Measures):
    """The network of ``pack``, or a part of it: the pieces ``own``.

    A part keeps the numbers of the whole: ``pieces``, values, spans and row operators are all that there
    are. Pieces and the joined ones of ``alternatives`` name their kernels; ``row_chains`` names
    those of row operators, by number. ``joins``: the graphs that may be one of several in a session;
    ``one_kernel``: those of them that are one kernel, and keep nothing when that ends.
    """

    pack: Pack
    values: tuple[Value, ...]
    spans: tuple[Span, ...]
    pieces: tuple[Piece, ...]
    own: range
    alternatives: tuple[Alternative, ...]
    row_values: tuple[RowValue, ...]
    row_operators: tuple[RowOperator, ...]
    bottlenecks: tuple[Bottleneck, ...]
    layers: tuple[Layer, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    row_chains: Mapping[int, NativeChain] = field(default_factory=dict)
    joins: frozenset[int] = frozenset()
    one_kernel: frozenset[int] = frozenset()
    #: What was made of it, by what makes it.
    _made: dict[Callable[[Any], Any], Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def as_compiled(cls, pack: Pack) -> Self:
        """Return the network of ``pack`` as its compiler left it: sessions run every piece."""
        manifest = pack.manifest
        return cls(
            pack=pack,
            values=manifest.values,
            spans=manifest.spans,
            pieces=manifest.pieces,
            own=range(len(manifest.pieces)),
            alternatives=manifest.alternatives,
            row_values=manifest.row_values,
            row_operators=manifest.row_operators,
            bottlenecks=manifest.bottlenecks,
            layers=manifest.layers,
            inputs=manifest.inputs,
            outputs=manifest.outputs,
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
    def own_pieces(self) -> tuple[Piece, ...]:
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


def program_checksum(program: Program) -> str:
    """Return the checksum of all that planners look at: of the file, and of what was decided."""
    told = [getattr(program, each.name) for each in fields(program) if each.init][1:]
    sets = [sorted(each) if isinstance(each, frozenset) else each for each in told]
    rest = (program.graphs, program.programs, program.target)
    return checksum(f"{program.name} {rest} {sets}".encode())


@contextmanager
def letting_go(program: Program) -> Iterator[None]:
    """Let go of what was made of ``program`` meanwhile."""
    try:
        yield
    finally:
        program.let_go()
