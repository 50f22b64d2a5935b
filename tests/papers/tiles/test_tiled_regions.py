"""Real operators on tiles: whatever their size and order, the answers have the bits of whole tensors."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from loader.pool.pool import ReadPool
from models.packs.pack import Pack
from models.packs.target import host_target
from papers.tiles.fused_groups import TileError, pack_layers, parse
from papers.tiles.fused_pack import regions_of, tiled_pack
from papers.tiles.predictor import group_bytes
from papers.tiles.tiled_regions import Reuse, TileCut
from pipeline.devices.cpu import CpuDevice
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.program.program import Program
from pipeline.program.region_plan import Region, RegionError, RowCut
from pipeline.program.regions import plan_region
from pipeline.program.steps import planned_region, row_network
from pipeline.schedule.architectures import ARCHITECTURES
from tests.pipeline.execution.test_rows import (
    CASES,
    MAXIMA,
    Case,
    Machine,
    answers,
    check_no_numbers,
    compiled,
    same_bits,
)
from tests.pipeline.program.regions import is_possible, largest_regions

pytestmark = pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")

_SIZES = ((2, 3), (5, 4), (40, 2), (3, 40))
_REUSES: tuple[Reuse, ...] = get_args(Reuse)
# A chain of odd sizes: strides, padding, a pool.
_CHAIN = "photograph"
# What runs in every suite: each a size and an order of tiles; the rest of the cases are slow.
_QUICK = {
    "photograph": TileCut(3, 4, "checkerboard"),
    "residual": TileCut(5, 4, "raster"),
    "joins": TileCut(4, 2, "checkerboard"),
    "enlarged": TileCut(3, 4, "raster"),
    "a window and its sum": TileCut(5, 3),
}
# Pools alone, outside of the blocked layout: no tiles make these.
_UNTILED = {"plain pools", "means of windows as wide as their input"}


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with closing(ReadPool()) as pool, closing(CpuDevice()) as device:
        yield device, pool


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return tiled_pack(compiled(CASES[_CHAIN], tmp_path_factory.mktemp("chain")))


def check(case: Case, cuts: Sequence[TileCut], machine: Machine, folder: Path) -> None:
    """Check that tiles of each of ``cuts`` give the bits of the whole."""
    pack = tiled_pack(compiled(case, folder))
    expected = answers(pack, machine)
    for cut in cuts:
        regions = largest_regions(row_network(Program.as_compiled(pack)), cut)
        assert regions
        for architecture in ("pre", "auto"):
            assert same_bits(answers(pack, machine, regions, architecture), expected), regions


@pytest.mark.parametrize("name", _QUICK)
def test_tiles_have_the_bits_of_whole_tensors(name: str, machine: Machine, tmp_path: Path) -> None:
    check(CASES[name], [_QUICK[name]], machine, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in _UNTILED])
def test_all_tiles_have_the_bits_of_whole_tensors(
    name: str, machine: Machine, tmp_path: Path
) -> None:
    cuts = [TileCut(*size, reuse) for size, reuse in product(_SIZES, _REUSES)]
    check(CASES[name], cuts, machine, tmp_path)


@pytest.mark.parametrize("name", [name for name, case in MAXIMA.items() if case.weights])
def test_what_is_no_number_stays_where_it_was(name: str, machine: Machine, tmp_path: Path) -> None:
    """Outside of the blocked layout maxima go along the width in vectors, so no tiles are made there."""
    pack = tiled_pack(compiled(MAXIMA[name], tmp_path))
    check_no_numbers(pack, (TileCut(2, 3), TileCut(3, 4)), machine)


@pytest.mark.parametrize("name", ["3x4/1/2x2", "2x2/NoCut raster", "5x3/2/1x2 checkerboard"])
def test_configurations_run_in_what_was_predicted(name: str, chain: Pack, machine: Machine) -> None:
    program = Program.as_compiled(chain)
    layers = pack_layers(program)
    configuration = parse(name, len(layers))
    regions = regions_of(program, layers, configuration)
    tiled = [group for group in configuration.groups if not group.tiling.is_whole]
    for group, region in zip(tiled, regions, strict=True):
        first, last = layers[group.first], layers[group.end - 1]
        whole = sum(4 * c * h * w for c, h, w in (first.source, last.output))
        live = planned_region(program, region).live_bytes()
        assert 0 < live <= group_bytes(layers, group) - whole
    assert same_bits(answers(chain, machine, regions), answers(chain, machine))


def test_plans_state_what_is_computed_again(chain: Pack) -> None:
    end = len(chain.manifest.pieces)
    ratios = {}
    for region in (
        Region(0, end, RowCut(2)),
        Region(0, end, TileCut(2, 2, "raster")),
        Region(0, end, TileCut(2, 2, "checkerboard")),
        Region(0, end, TileCut(4, 4)),
        Region(0, end, TileCut(2, 2)),
    ):
        plan = make_plan(
            Program.as_compiled(chain), ARCHITECTURES["auto"], choice=Choice(regions=(region,))
        )
        ratios[region] = plan.as_dict()["macs_ratio"]
    *once, large, small = ratios.values()
    assert once == [1.0, 1.0, 1.0]
    assert 1.0 < large < small


def test_a_cut_inside_a_residual_block_is_refused_by_name(tmp_path: Path) -> None:
    """The sum lies over what the windows of later tiles read; on rows that is loaded first."""
    pack = tiled_pack(compiled(CASES["a sum over what windows read later"], tmp_path))
    network = row_network(Program.as_compiled(pack))
    names = [value.name for value in network.values]
    with pytest.raises(RegionError, match=r"lies over .*, which later tiles read") as refusal:
        plan_region(network, Region(1, 3, TileCut(2, 2)))
    assert sum(name in str(refusal.value) for name in names) >= 2
    with pytest.raises(TileError, match="does not read the layer before it, and that alone"):
        pack_layers(Program.as_compiled(pack))


def test_cuts_anywhere_give_the_bits_of_the_whole_or_are_refused(
    machine: Machine, tmp_path: Path
) -> None:
    """Two residual blocks: where a sum would lie over what later tiles read there is no such region."""
    pack = tiled_pack(compiled(CASES["residual"], tmp_path))
    network, expected = row_network(Program.as_compiled(pack)), answers(pack, machine)
    count = len(Program.as_compiled(pack).pieces)
    refused = 0
    for cut in range(1, count):
        regions = (Region(0, cut, TileCut(4, 3, "raster")), Region(cut, count, TileCut(5, 2)))
        possible = tuple(item for item in regions if is_possible(network, item))
        refused += len(regions) - len(possible)
        assert same_bits(answers(pack, machine, possible), expected), possible
    assert refused < count - 1


def test_a_pack_makes_no_tiles_until_it_is_tiled(tmp_path: Path) -> None:
    pack = compiled(CASES[_CHAIN], tmp_path)
    region = Region(0, len(Program.as_compiled(pack).pieces), TileCut(2, 2))
    with pytest.raises(RegionError, match="is not made by tiles, only by whole rows"):
        planned_region(Program.as_compiled(pack), region)
    assert planned_region(Program.as_compiled(tiled_pack(pack)), region).phases
    for graph, said in ((b"\xff", "is not ONNX"), (b"", "is not one node")):
        damaged = replace(pack, graphs=(graph,) * len(pack.graphs))
        with pytest.raises(TileError, match=said):
            tiled_pack(damaged)


def test_what_needs_whole_rows_is_refused_by_name(tmp_path: Path) -> None:
    """Pools outside of the blocked layout go along the width in vectors."""
    pack = tiled_pack(compiled(CASES["plain pools"], tmp_path))
    network = row_network(Program.as_compiled(pack))
    with pytest.raises(RegionError, match="a is not made by tiles, only by whole rows"):
        plan_region(network, Region(0, len(Program.as_compiled(pack).pieces), TileCut(2, 2)))
    with pytest.raises(RegionError, match="at least one of each"):
        TileCut(2, 0)
