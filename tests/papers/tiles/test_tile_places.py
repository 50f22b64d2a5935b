"""Tiles of a plane, and where what they keep lies."""

from itertools import combinations
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from papers.tiles.tiled_regions import KeptTile, Reuse, TileCut, hull, placed_boxes, tiles_of
from pipeline.program.boxes.box import Interval, RowBox, common
from tests.pipeline.program.test_boxes import boxes, pixels


@given(boxes, boxes)
def test_a_box_around_two(one: RowBox, other: RowBox) -> None:
    both = hull([one, other])
    assert both is not None
    assert pixels(both) >= pixels(one) | pixels(other)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 13), st.integers(1, 13))
def test_tiles_cover_a_plane_once(height: int, width: int, rows: int, columns: int) -> None:
    whole = pixels(RowBox(Interval(0, height), Interval(0, width)))
    reuses: tuple[Reuse, ...] = get_args(Reuse)
    for reuse in reuses:
        tiles = tiles_of(height, width, TileCut(rows, columns, reuse))
        assert sum(tile.pixels for tile in tiles) == len(whole)
        assert set().union(*map(pixels, tiles)) == whole


def test_tiles_of_one_colour_have_no_edge_in_common() -> None:
    tiles = tiles_of(9, 12, TileCut(3, 3, "checkerboard"))
    first = tiles[: len(tiles) // 2]
    for one, other in combinations(first, 2):
        beside = RowBox(one.rows, Interval(one.columns.first - 1, one.columns.end + 1))
        above = RowBox(Interval(one.rows.first - 1, one.rows.end + 1), one.columns)
        assert common(beside, other) is None
        assert common(above, other) is None


spans = st.tuples(st.integers(0, 6), st.integers(1, 5), st.integers(1, 500))


@given(st.lists(spans, max_size=8))
def test_what_is_kept_at_once_lies_apart(drawn: list[tuple[int, int, int]]) -> None:
    nothing = RowBox(Interval(0, 1), Interval(0, 1))
    kept = [KeptTile(0, nothing, maker, maker + after) for maker, after, _ in drawn]
    sizes = [size for *_, size in drawn]
    offsets, n_bytes = placed_boxes(kept, sizes)
    assert all(offset + size <= n_bytes for offset, size in zip(offsets, sizes, strict=True))
    for one, other in combinations(range(len(kept)), 2):
        first, second = kept[one], kept[other]
        together = max(first.maker, second.maker) <= min(first.reader, second.reader)
        apart = (
            offsets[one] + sizes[one] <= offsets[other]
            or offsets[other] + sizes[other] <= offsets[one]
        )
        assert apart or not together
