"""What a region is: pieces that follow each other, and what is made of them at a time."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import NonNegativeInt, PositiveInt

from models.network.fields import Record

#: What tiles take of what others made: nothing, so that they make overlaps again; all there is, line by
#: line; all there is, every other tile first (seed 002, Section 2.1.3).
Reuse = Literal["none", "raster", "checkerboard"]


class RegionError(Exception):
    """These pieces cannot run so; the message says why."""


def _check(*sizes: int) -> None:
    if min(sizes) < 1:
        raise RegionError(f"{sizes} at a time: at least one of each")


@dataclass(frozen=True, slots=True)
class RowCut(Record):
    """So many rows of the last operator's output (seed 001)."""

    rows: PositiveInt

    #: Whether what lies outside is read row by row, so that a request's own array may be asked for them.
    takes_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self.rows)


@dataclass(frozen=True, slots=True)
class TileCut(Record):
    """Tiles: so many columns of so many rows, which ``reuse`` what others made (seed 002)."""

    rows: PositiveInt
    columns: PositiveInt
    reuse: Reuse = "none"

    takes_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check(self.rows, self.columns)


@dataclass(frozen=True, slots=True)
class ChannelCut(Record):
    """So many inner channels of a bottleneck, on bands of so many rows of its result (seed 004)."""

    channels: PositiveInt
    rows: PositiveInt

    takes_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check(self.channels, self.rows)


Cut = RowCut | TileCut | ChannelCut


@dataclass(frozen=True, slots=True)
class Region(Record):
    """The pieces [first_piece, end_piece) of the manifest, a part of them at a time as ``cut`` says.

    ``in_arena``: its weights lie in the arena while it runs, where activations of other times lie, and not
    in the ring.
    """

    first_piece: NonNegativeInt
    end_piece: NonNegativeInt
    cut: Cut
    in_arena: bool = False

    @property
    def pieces(self) -> range:
        return range(self.first_piece, self.end_piece)
