"""What tiles make and need, of drawn chains of layers: nothing twice that is kept, nothing missing."""

from collections import Counter
from collections.abc import Iterator
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from models.network.windows import Window
from papers.tiles.fused_groups import FusedGroup, FusedLayer, Tiling
from papers.tiles.predictor import GroupBoxes, up_tile, whole_macs
from papers.tiles.tiled_regions import Reuse
from pipeline.program.boxes.box import Interval, RowBox, without

Extent = tuple[Window, int]


@st.composite
def windows(draw: st.DrawFn, extent: int) -> Extent:
    """A window, and how many lines it makes of ``extent``."""
    kernel, stride = draw(st.sampled_from([1, 2, 3, 5])), draw(st.sampled_from([1, 1, 2]))
    before = draw(st.integers(0, kernel - 1))
    room = extent + before + draw(st.integers(0, kernel - 1)) - kernel
    made = room // stride + 1
    if room < 0 or (made - 1) * stride - before >= extent:
        return Window(), extent
    return Window(kernel=kernel, stride=stride, before=before), made


@st.composite
def chains(draw: st.DrawFn) -> tuple[FusedLayer, ...]:
    shape = (1, draw(st.integers(1, 19)), draw(st.integers(1, 19)))
    found = []
    for number in range(draw(st.integers(1, 4))):
        rows, height = draw(windows(shape[1]))
        columns, width = draw(windows(shape[2]))
        output = (draw(st.integers(1, 3)), height, width)
        weights = draw(st.integers(0, 9))
        found.append(FusedLayer(f"l{number}", shape, output, rows, columns, weights))
        shape = output
    return tuple(found)


tilings = st.builds(Tiling, st.integers(1, 5), st.integers(1, 5), st.sampled_from(get_args(Reuse)))


def pixels(box: RowBox) -> Iterator[tuple[int, int]]:
    for row in range(box.rows.first, box.rows.end):
        for column in range(box.columns.first, box.columns.end):
            yield row, column


@given(chains(), tilings)
def test_every_output_is_made_once_where_tiles_reuse(
    layers: tuple[FusedLayer, ...], tiling: Tiling
) -> None:
    boxes = GroupBoxes(layers, FusedGroup(0, len(layers), tiling))
    for number, layer in enumerate(layers):
        made = Counter(
            pixel for tile in boxes.made for box in tile[number] for pixel in pixels(box)
        )
        whole = RowBox(Interval(0, layer.output[1]), Interval(0, layer.output[2]))
        if number == len(layers) - 1:
            assert made == Counter(pixels(whole))
        assert made.keys() <= set(pixels(whole))
        assert tiling.reuse == "none" or set(made.values()) <= {1}
    assert tiling.reuse == "none" or boxes.macs <= whole_macs(layers)


@given(chains(), tilings)
def test_what_a_tile_needs_is_there(layers: tuple[FusedLayer, ...], tiling: Tiling) -> None:
    boxes = GroupBoxes(layers, FusedGroup(0, len(layers), tiling))
    there: list[list[RowBox]] = [[] for _ in layers]
    for tile in boxes.made:
        for number, made in enumerate(tile):
            if tiling.reuse == "none":
                there[number] = []
            there[number] += made
        for number in range(1, len(layers)):
            for box in tile[number]:
                needed = up_tile(layers[number], box)
                assert not needed.pixels or not without(needed, there[number - 1])


@given(chains())
def test_one_tile_is_the_layers_whole(layers: tuple[FusedLayer, ...]) -> None:
    (tile,) = GroupBoxes(layers, FusedGroup(0, len(layers), Tiling(1, 1))).made
    assert [box.pixels for box in tile[-1]] == [layers[-1].output[1] * layers[-1].output[2]]
