"""The one decision what runs each piece of a pack on a device, made when the pack is opened.

Invariant: plans count what a program says, and engines bind it; neither asks the device again.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from models.packs.pack import Pack
from models.packs.records.pieces import Alternative, JoinedPieces, Piece
from models.packs.records.row_parts import RowOperator, unrolled_bytes
from models.runtime.joined_graphs import is_one
from pipeline.program.decided import ChainJoined, ChainPiece, NativePiece
from pipeline.program.preparing.chains import ChainAbility, with_chains
from pipeline.program.preparing.natives import NativeAbility, with_natives
from pipeline.program.program import Program

_Sized = TypeVar("_Sized", Piece, JoinedPieces)


@dataclass(frozen=True)
class Abilities:
    """What a device can do beside loading pieces as they were compiled, as it works now.

    ``threads`` compute; None: as many as the compiler counted with. ``quantised``, ``chains``: what it
    decides of quantised layers and of operators on elements that it has kernels for. ``joins``: whether a
    serialised piece, whose values are floats of 32 bits, may be one of several in a session.
    ``scratch_bytes``: what its kernel of a serialised piece allocates, None where the pack says it.
    """

    threads: int | None = None
    quantised: NativeAbility | None = None
    chains: ChainAbility | None = None
    joins: Callable[[bytes], bool] = lambda graph: False
    scratch_bytes: Callable[[bytes], int | None] | None = None


class Able(Protocol):
    """A device, as far as programs are made for it."""

    def abilities(self) -> Abilities: ...


def prepare(pack: Pack, device: Able) -> Program:
    """Return the network of ``pack`` as ``device`` runs it, as it works now.

    Raises:
        PackError: its pieces are such that no kernel could run them.
    """
    able = device.abilities()
    program = Program.as_compiled(pack)
    if able.threads is not None:
        program = _with_threads(program, able.threads)
    if able.quantised is not None:
        program = with_natives(program, able.quantised)
    if able.chains is not None:
        program = with_chains(program, able.chains)
    program = _with_joins(program, able.joins)
    return program if able.scratch_bytes is None else _with_scratch(program, able.scratch_bytes)


def _with_threads(program: Program, threads: int) -> Program:
    """Return ``program`` with what plain convolutions allocate where ``threads`` threads compute."""

    def fit(item: _Sized) -> _Sized:
        if item.unrolled is None:
            return item
        return replace(item, scratch_bytes=unrolled_bytes(item.unrolled, threads))

    def on_rows(item: RowOperator) -> RowOperator:
        if item.unrolled is None:
            return item
        segments = min(item.unrolled.segments, threads)
        return replace(item, unrolled=replace(item.unrolled, segments=segments))

    rows = tuple(map(on_rows, program.row_operators))
    return replace(_changed(program, fit, fit), row_operators=rows)


def _with_joins(program: Program, joins: Callable[[bytes], bool]) -> Program:
    """Return ``program`` with the graphs that join others: with all of their pieces, or with none."""
    as_compiled = functools.cache(lambda number: joins(program.pack.graphs[number]))

    def can(item: Piece | JoinedPieces) -> bool:
        if isinstance(item, ChainPiece | ChainJoined):
            return item.chain.node_bytes is not None
        return not isinstance(item, NativePiece) and as_compiled(item.graph)

    items: list[Piece | JoinedPieces] = [*program.pieces]
    items += (each for alternative in program.alternatives for each in alternative.joined)
    found: dict[int, bool] = {}
    for item in items:
        found[item.graph] = found.get(item.graph, True) and can(item)
    joining = frozenset(number for number, each in found.items() if each)
    one_kernel = frozenset(number for number in joining if is_one(program.pack.graphs[number]))
    return replace(program, joins=joining, one_kernel=one_kernel)


def _with_scratch(program: Program, scratch_bytes: Callable[[bytes], int | None]) -> Program:
    """Return ``program`` with what kernels of the device allocate."""
    needed = functools.cache(lambda number: scratch_bytes(program.pack.graphs[number]))

    def fit(item: _Sized) -> _Sized:
        found = needed(item.graph)
        return item if found is None else replace(item, scratch_bytes=found)

    return _changed(program, fit, fit)


def _changed(
    program: Program,
    of_piece: Callable[[Piece], Piece],
    of_joined: Callable[[JoinedPieces], JoinedPieces],
) -> Program:
    """Return ``program`` with other pieces; what stays as it is are the same objects."""

    def alternative(item: Alternative) -> Alternative:
        joined = tuple(map(of_joined, item.joined))
        same = all(new is old for new, old in zip(joined, item.joined, strict=True))
        return item if same else replace(item, joined=joined)

    return replace(
        program,
        pieces=tuple(map(of_piece, program.pieces)),
        alternatives=tuple(map(alternative, program.alternatives)),
    )
