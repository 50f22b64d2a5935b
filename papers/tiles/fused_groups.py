"""Fused groups of layers: what they may hold, where a configuration cuts them, and their tiles.

Written as in seed 002: ``5x5/8/2x2`` is 5 x 5 tiles of the layers before layer 8 and 2 x 2 of the rest,
``2x2/NoCut`` one group; more groups go on as ``3x3/4/2x3/12/1x1``. Tiles run alone and make overlaps
again, or reuse what others made: then ``raster`` or ``checkerboard`` follows a blank.
"""

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

from models.errors import ModelError
from models.network.macs import weight_count
from models.network.windows import Window
from papers.tiles.tiled_regions import Reuse, TileCut, TiledOperator
from pipeline.program.program import Program

# The layers that a group fuses: a chain of convolutions, pools and operators on elements.


class TileError(ModelError):
    """Layers cannot be fused, or a configuration is not one of theirs; the message names which."""


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """One layer of a chain. ``source``, ``output``: channels, height, width, in elements.

    ``down``, ``across``: which rows and columns of its input it needs. ``weights``: elements, 0 of a pool.
    ``piece``: the first of its pieces in a pack, where it is of one.
    """

    name: str
    source: tuple[int, int, int]
    output: tuple[int, int, int]
    down: Window
    across: Window
    weights: int
    piece: int = 0

    @property
    def kernel(self) -> tuple[int, int]:
        """Rows and columns of the window."""
        return self.down.reach, self.across.reach

    @property
    def stride(self) -> int:
        return self.down.stride


def pack_layers(program: Program) -> tuple[FusedLayer, ...]:
    """Return the layers of a tiled pack that can run on tiles, from its first to the first that cannot.

    Raises:
        TileError: it reads what is not the layer before it, as a residual sum does, or has no such layers.
    """
    fused_layers: list[FusedLayer] = []
    last: int | None = None
    for operator in program.row_operators:
        output = program.row_values[operator.output]
        if not isinstance(operator, TiledOperator):
            break
        if len(operator.inputs) != 1 or operator.inputs[0].row_value != (
            operator.inputs[0].row_value if last is None else last
        ):
            raise TileError(
                f"{program.name}: {output.name} does not read the layer before it, and that alone: "
                "only a chain of layers can be fused"
            )
        fused_layers.append(_of_pack(program, operator))
        last = operator.output
    if not fused_layers:
        raise TileError(f"{program.name}: no layer of it runs on tiles")
    return tuple(fused_layers)


def _of_pack(program: Program, operator: TiledOperator) -> FusedLayer:
    taken = operator.inputs[0]
    source, output = program.row_values[taken.row_value], program.row_values[operator.output]
    return FusedLayer(
        output.name,
        (source.shape[1], source.shape[2], source.shape[3]),
        (output.shape[1], output.shape[2], output.shape[3]),
        taken.window,
        operator.across[0],
        weight_count(operand.shape for operand in operator.weights),
        operator.first_piece,
    )


# Configurations: where layers are cut into groups, and how many tiles each group has.

_TILING = re.compile(r"(\d{1,4})x(\d{1,4})")
_REUSES: tuple[Reuse, ...] = get_args(Reuse)


@dataclass(frozen=True, slots=True)
class Tiling:
    """``down`` x ``across`` tiles, and what they take of others."""

    down: int
    across: int
    reuse: Reuse = "none"

    def __post_init__(self) -> None:
        if min(self.down, self.across) < 1:
            raise TileError(f"{self.down}x{self.across}: at least one tile each way")

    def __str__(self) -> str:
        return f"{self.down}x{self.across}"

    @property
    def is_whole(self) -> bool:
        return self.down == self.across == 1

    def boxes_of(self, height: int, width: int) -> TileCut:
        """Return the tiles of an output of ``height`` and ``width``.

        They are of one size but the last; where sides do not divide there may be fewer than asked for.
        """
        return TileCut(-(-height // self.down), -(-width // self.across), self.reuse)


@dataclass(frozen=True, slots=True)
class FusedGroup:
    """Layers [first, end), fused in tiles."""

    first: int
    end: int
    tiling: Tiling


@dataclass(frozen=True, slots=True)
class TileConfiguration:
    """Groups that follow each other, from layer 0 on."""

    groups: tuple[FusedGroup, ...]

    def __post_init__(self) -> None:
        if not self.groups or self.groups[0].first or any(g.first >= g.end for g in self.groups):
            raise TileError("groups begin at layer 0 and have a layer each")
        for one, other in pairwise(self.groups):
            if one.end != other.first:
                raise TileError(f"{self}: cut {other.first} does not follow {one.end}")

    def __str__(self) -> str:
        first, *others = self.groups
        cuts = "".join(f"/{group.first}/{group.tiling}" for group in others) or "/NoCut"
        reuses = [group.tiling.reuse for group in self.groups if not group.tiling.is_whole]
        reuse = next((each for each in reuses if each != "none"), "none")
        return f"{first.tiling}{cuts}" + (f" {reuse}" if reuse != "none" else "")

    @property
    def end(self) -> int:
        return self.groups[-1].end


def parse(text: str, layers: int) -> TileConfiguration:
    """Return the configuration ``text`` of so many layers.

    Raises:
        TileError: it is none; the message says what is wrong with it.
    """
    shown = text[:80]
    written, _, reuse = text.partition(" ")
    if (reuse or "none") not in _REUSES:
        raise TileError(f"{shown}: {reuse[:20]!r} is none of {', '.join(_REUSES)}")
    parts = written.removesuffix("/NoCut").split("/")
    if len(parts) % 2 == 0:
        raise TileError(f"{shown}: tilings and cuts take turns, as in 5x5/8/2x2")
    cuts = [0, *(_cut(shown, part, layers) for part in parts[1::2]), layers]
    tilings = [
        _tiling(shown, part, next(r for r in _REUSES if r == (reuse or "none")))
        for part in parts[::2]
    ]
    for one, other in pairwise(cuts):
        if one >= other:
            raise TileError(f"{shown}: cut {other} does not lie behind {one}")
    pairs = zip(pairwise(cuts), tilings, strict=True)
    return TileConfiguration(
        tuple(FusedGroup(first, end, tiling) for (first, end), tiling in pairs)
    )


def _cut(text: str, part: str, layers: int) -> int:
    if not part.isdecimal() or len(part) > 6 or not 0 < int(part) < layers:
        raise TileError(
            f"{text}: {part[:20]!r} is no layer between the first and the last of {layers}"
        )
    return int(part)


def _tiling(text: str, part: str, reuse: Reuse) -> Tiling:
    found = _TILING.fullmatch(part)
    if not found or "0" in found.groups():
        raise TileError(f"{text}: {part[:20]!r} is no tiling, as 3x3 is (1 to 9999 each way)")
    return Tiling(int(found[1]), int(found[2]), reuse)
