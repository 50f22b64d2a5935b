"""Row operators that make tiles, too. No pack has them: pipeline/tiles/tiled_pack.py makes them."""

from dataclasses import dataclass

from models.network.windows import Window
from models.packs.records.rows import RowOperator


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledOperator(RowOperator):
    """A row operator that makes any columns of its rows by ``tile_graph``, which pads neither side.

    ``across``: to columns of each input what its window is to rows.
    """

    tile_graph: int
    across: tuple[Window, ...]

    @property
    def units(self) -> tuple[int, int]:
        """So many rows, and columns, are made of the same ones."""
        return self.unit, max(window.factor for window in self.across)
