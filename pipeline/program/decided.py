"""What a device decides of the pieces of a pack that it is to run: part of a program, never of a file.

Plans count by it, and kernels are bound by it; nothing looks again. A piece that a session runs as it was
compiled is the file's own record.
"""

from dataclasses import dataclass, fields
from typing import Any

from models.packs.records.pieces import JoinedPieces, Piece


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
