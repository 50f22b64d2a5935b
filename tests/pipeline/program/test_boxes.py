"""Boxes, and arithmetic with them."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.program.boxes.box import Interval, RowBox, common, without


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
def test_what_lies_in_both(one: RowBox, other: RowBox) -> None:
    both = common(one, other)
    assert (pixels(both) if both else set()) == pixels(one) & pixels(other)
