"""Boxes and where they are kept."""

from itertools import combinations
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from pipeline.program.boxes.box import Interval, RowBox, common, hull, without
from pipeline.program.boxes.tiles import KeptTile, placed_boxes, tiles_of
from pipeline.program.region_plan import Reuse, TileCut


def lines(most: int) -> st.SearchStrategy[Interval]:
    pairs = st.tuples(st.integers(0, most), st.integers(0, most))
    return pairs.map(lambda pair: Interval(min(pair), max(pair) + 1))


boxes = st.builds(RowBox, lines(8), lines(8))


def pixels(box: RowBox) -> set[tuple[int, int]]:
    rows, columns = box.rows, box.columns
    return {
        (row, column)
        for row in range(rows.first, rows.end)
        for column in range(columns.first, columns.end)
    }


@given(boxes, st.lists(boxes, max_size=4))
def test_what_is_left_of_a_box(box: RowBox, others: list[RowBox]) -> None:
    left = without(box, others)
    assert sum(part.pixels for part in left) == len(set().union(*map(pixels, left)))
    expected = pixels(box).difference(*map(pixels, others))
    assert set().union(*map(pixels, left)) == expected


@given(boxes, boxes)
def test_common_and_around(one: RowBox, other: RowBox) -> None:
    both = common(one, other)
    assert (pixels(both) if both else set()) == pixels(one) & pixels(other)
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
