"""Real operators on tiles: whatever their size and order, the answers have the bits of whole tensors."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from loader.pool.pool import ReadPool
from models.packs.pack import Pack
from models.packs.target import host_target
from pipeline.devices.cpu import CpuDevice
from pipeline.program.regions import Call, Region, RegionError, Reuse, plan_region
from pipeline.program.row_network import RowNetwork
from pipeline.program.steps import row_network
from tests.pipeline.execution.test_rows import CASES, Machine, answers, compiled, same_bits

pytestmark = pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")

_SIZES = ((1, 1), (2, 3), (5, 4), (40, 2), (3, 40))
_REUSES: tuple[Reuse, ...] = get_args(Reuse)


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with closing(ReadPool()) as pool, closing(CpuDevice()) as device:
        yield device, pool


def largest_tiled(network: RowNetwork, rows: int, columns: int, reuse: Reuse) -> tuple[Region, ...]:
    """Return the longest regions there are, from the first piece on, on tiles of that size."""
    count = len(network.manifest.pieces)
    found: list[Region] = []
    start = 0
    while start < count:
        regions = [Region(start, end, rows, columns, reuse) for end in range(count, start, -1)]
        region = next((item for item in regions if is_possible(network, item)), None)
        if region is not None:
            found.append(region)
        start = start + 1 if region is None else region.end_piece
    return tuple(found)


def is_possible(network: RowNetwork, region: Region) -> bool:
    try:
        plan_region(network, region)
    except RegionError:
        return False
    return True


@pytest.mark.parametrize("name", CASES)
def test_tiles_have_the_bits_of_whole_tensors(name: str, machine: Machine, tmp_path: Path) -> None:
    pack = compiled(CASES[name], tmp_path)
    network = row_network(pack.manifest)
    expected = answers(pack, machine)
    for rows, columns in _SIZES:
        for reuse in _REUSES:
            regions = largest_tiled(network, rows, columns, reuse)
            assert regions
            assert same_bits(answers(pack, machine, regions), expected), regions
