"""The wider search, beside all configurations of a few tilings."""

from collections.abc import Iterator
from itertools import pairwise, product

import pytest

from models.darknet.network import build_network
from models.zoo.darknet.detectors import yolov2
from papers.tiles.fused_groups import (
    FusedGroup,
    FusedLayer,
    TileConfiguration,
    Tiling,
)
from papers.tiles.predictor import GroupBoxes, group_bytes, weight_bytes, whole_macs
from papers.tiles.tiling_search import MachineSpeed, WideSearch
from tests.papers.tiles.darknet_chain import darknet_layers

TILINGS = (Tiling(1, 1), Tiling(2, 2, "raster"), Tiling(2, 3))
#: Only MACs count.
PACE = MachineSpeed(macs_a_second=1.0, call_seconds=0.0, copied_bytes_a_second=1e30)
COUNT = 4


@pytest.fixture(scope="module")
def layers() -> tuple[FusedLayer, ...]:
    return darknet_layers(build_network(yolov2(), "yolov2", 96), COUNT)


def every() -> Iterator[TileConfiguration]:
    for chosen in product((False, True), repeat=COUNT - 1):
        cuts = [0, *(number for number, cut in enumerate(chosen, 1) if cut), COUNT]
        for tilings in product(TILINGS, repeat=len(cuts) - 1):
            pairs = zip(pairwise(cuts), tilings, strict=True)
            yield TileConfiguration(
                tuple(FusedGroup(first, end, each) for (first, end), each in pairs)
            )


def taken(layers: tuple[FusedLayer, ...], item: TileConfiguration) -> int:
    return max(group_bytes(layers, group) for group in item.groups) + max(
        weight_bytes(layers, group) for group in item.groups
    )


def macs(layers: tuple[FusedLayer, ...], item: TileConfiguration) -> int:
    return sum(GroupBoxes(layers, group).macs for group in item.groups)


def test_nothing_that_fits_is_faster(layers: tuple[FusedLayer, ...]) -> None:
    search = WideSearch(layers, TILINGS, PACE)
    sizes = {item: taken(layers, item) for item in every()}
    least, most = min(sizes.values()), max(sizes.values())
    bias = 1000
    assert search.find(least + bias, bias) is None
    for limit in range(least + 1, most, (most - least) // 8):
        found = search.find(limit + bias, bias)
        assert found is not None
        assert taken(layers, found) < limit
        fitting = (item for item, size in sizes.items() if size < limit)
        assert macs(layers, found) == min(macs(layers, item) for item in fitting)
    assert str(search.find(most + bias + 1, bias)) == "1x1/NoCut"
    assert macs(layers, TileConfiguration((FusedGroup(0, COUNT, TILINGS[0]),))) == whole_macs(
        layers
    )
