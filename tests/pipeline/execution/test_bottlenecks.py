"""Bottlenecks in groups of channels: the answers of the whole but for rounding, in less memory."""

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from loader.pool.pool import ReadPool
from loader.readers.fakes import MemoryReader
from models.compiler import compile_onnx
from models.packs.pack import Pack, open_pack
from models.packs.target import host_target
from models.zoo.builder import SkeletonBuilder, ZooTensor
from models.zoo.mobile_classifiers import mobilenet_v2
from pipeline.devices.base import Device
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import LEAST, Wanted
from pipeline.planning.explain import explain_regions
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.planning.rows.region_edges import group_regions
from pipeline.program.channels import bottleneck_of, groups
from pipeline.program.partitions import Cuts
from pipeline.program.program import Program
from pipeline.program.region_plan import ChannelCut, Region, RegionError
from pipeline.program.steps import planned_region
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import thinned
from tests.models.nets import answers, filled, inputs_for
from tests.oracle.device import ReferenceDevice

pytestmark = pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")

_SIDE, _NARROW = 56, 16


@dataclass(frozen=True)
class Case:
    """A network of two inverted bottlenecks: the first adds what it read, unless it has a ``stride``.

    ``names_padding``: convolutions say ``auto_pad``. ``below``: windows begin at the first row and end
    behind the last one.
    """

    expansion: int = 4
    stride: int = 1
    kernel: int = 3
    gate: bool = False
    narrow: int = _NARROW
    names_padding: bool = False
    side: int = _SIDE
    below: bool = False

    def model(self) -> onnx.ModelProto:
        b = SkeletonBuilder("bottlenecks", 2 * self.side)
        x = b.relu6(b.norm(b.conv(b.image, self.narrow, 3, 2)))
        for stride in (self.stride, 1):
            y = self._inner(b, x, stride)
            y = b.norm(b.conv(y, self.narrow, 1))
            x = b.add(x, y) if stride == 1 else y
        model = b.model(b.linear(b.flatten(b.global_pool(x)), 10))
        for node in model.graph.node if self.names_padding else ():
            for item in node.attribute:
                if item.name == "pads" and list(item.ints) == [1, 1, 1, 1]:
                    item.CopyFrom(onnx.helper.make_attribute("auto_pad", "SAME_UPPER"))
        for node in model.graph.node if self.below else ():
            for item in node.attribute:
                if item.name == "pads" and list(item.ints) == [1, 1, 1, 1]:
                    item.ints[:] = [0, 1, 2, 1]
        return model

    def _inner(self, b: SkeletonBuilder, x: ZooTensor, stride: int) -> ZooTensor:
        act = b.silu if self.gate else b.relu6
        wide = self.expansion * self.narrow
        y = act(b.norm(b.conv(x, wide, 1)))
        y = act(b.norm(b.conv(y, wide, self.kernel, stride, groups=wide)))
        if not self.gate:
            return y
        factors = b.conv(b.global_pool(y), 32, 1, bias=True)
        factors = b.sigmoid(b.conv(act(factors), wide, 1, bias=True))
        return b.mul(y, factors)


CASES = {
    "added": Case(),
    "padding by name": Case(names_padding=True),
    "narrower": Case(stride=2),
    "large windows": Case(kernel=5, stride=2, expansion=6),
    "rounded channels": Case(narrow=24, expansion=6),
    "gate": Case(gate=True),
    "gate, narrower": Case(gate=True, stride=2, kernel=5),
}


Packs = Callable[[Case], Pack]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Packs:
    """Return the pack of a case, each compiled once."""

    @functools.cache
    def made(case: Case) -> Pack:
        folder = tmp_path_factory.mktemp("bottlenecks")
        onnx.save(filled(case.model(), seed=2), folder / "m.onnx")
        return open_pack(compile_onnx(folder / "m.onnx", folder / "m"))

    return made


@pytest.fixture
def pool() -> Iterator[ReadPool]:
    with closing(ReadPool()) as made:
        yield made


def answer(
    pack: Pack,
    pool: ReadPool,
    regions: tuple[Region, ...] = (),
    architecture: str = "auto",
    device: Device | None = None,
) -> np.ndarray:
    program = Program.as_compiled(pack)
    plan = make_plan(program, ARCHITECTURES[architecture], choice=Choice(regions=regions))
    reader = MemoryReader(pack.weights_path.read_bytes())
    inputs = inputs_for({port.name: port.shape for port in program.inputs})
    with closing(Engine(program, plan, device or CpuDevice(2), pool, reader)) as engine:
        engine.open()
        first, second = (engine.run(inputs)[0]["logits"] for _ in range(2))
    assert first.tobytes() == second.tobytes()
    return first


def possible(program: Program) -> list[Region]:
    found = []
    for region in group_regions(program):
        try:
            planned_region(program, region)
        except RegionError:
            continue
        found.append(region)
    return found


def together(program: Program, channels: int, rows: int) -> tuple[Region, ...]:
    """Return all bottlenecks in groups of up to so many channels, and on as many rows as are given."""
    found = []
    for item in program.bottlenecks:
        size = max((each for each in item.sizes if each <= channels), default=item.sizes[0])
        found.append(Region(item.first_piece, item.end_piece, ChannelCut(size, rows)))
    return tuple(found)


@pytest.mark.parametrize("name", thinned(CASES, 2))
def test_groups_give_what_the_whole_gives(name: str, pool: ReadPool, compiled: Packs) -> None:
    pack = compiled(CASES[name])
    program, block = Program.as_compiled(pack), pack.manifest.target.block
    assert program.bottlenecks
    whole = answer(pack, pool)
    most = np.abs(whole).max()
    ways = [
        together(program, channels, _SIDE if CASES[name].gate else rows)
        for channels, rows in ((2 * block, 9), (block, 4))
    ]
    found = [answer(pack, pool, regions) for regions in ways]
    for regions, each in zip(ways, found, strict=True):
        assert np.abs(each - whole).max() <= 1e-5 * most, regions
    # On the fewest rows, where there are most groups.
    one_thread = answer(pack, pool, ways[-1], "pre", device=CpuDevice(1))
    assert found[-1].tobytes() == one_thread.tobytes()


@pytest.mark.parametrize(
    "joining",
    ["Add", *(pytest.param(name, marks=pytest.mark.slow) for name in ("Mul", "Sub", "Max"))],
)
def test_channels_that_a_convolution_reads_all_of_are_not_in_groups(
    joining: str, pool: ReadPool, tmp_path: Path
) -> None:
    """An operator of each channel reads them, too."""
    model = parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> net
        (float[1,3,24,24] x) => (float[1,16,24,24] logits) {{
            a = Conv<pads=[1,1,1,1]>(x, w0)  b = Conv<pads=[1,1,1,1]>(a, w1)  r = Sigmoid(b)
            j = {joining}(a, r)  logits = Conv(j, w2)
        }}"""
    )
    generator = np.random.default_rng(2)
    for name, shape in {"w0": (32, 3, 3, 3), "w1": (32, 32, 3, 3), "w2": (16, 32, 1, 1)}.items():
        weights = (generator.standard_normal(shape) / 8).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    onnx.save(onnx.shape_inference.infer_shapes(model), tmp_path / "m.onnx")
    pack = open_pack(compile_onnx(tmp_path / "m.onnx", tmp_path / "m"))
    program = Program.as_compiled(pack)
    regions = together(program, pack.manifest.target.block, 24)
    assert regions
    expected = answers(tmp_path / "m.onnx", inputs_for({"x": (1, 3, 24, 24)}))["logits"]
    for candidate in ((), regions):
        got = answer(pack, pool, candidate)
        assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max(), candidate


@pytest.mark.parametrize("name", ["added", "gate"])
def test_groups_on_other_devices(name: str, pool: ReadPool, compiled: Packs) -> None:
    pack = compiled(CASES[name])
    regions = together(Program.as_compiled(pack), pack.manifest.target.block, _SIDE)
    expected = answer(pack, pool, regions)
    with closing(CpuDevice(2)) as device:
        copied = answer(pack, pool, regions, "async", device)
    assert copied.tobytes() == expected.tobytes()
    reference = answer(pack, pool, regions, device=ReferenceDevice())
    np.testing.assert_allclose(reference, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_the_peak_does_not_move_with_the_expansion(compiled: Packs) -> None:
    """Seed 004, Table 3."""
    taken: dict[int, list[int]] = {}
    for expansion in (2, 8):
        program = Program.as_compiled(compiled(Case(expansion=expansion, narrow=32)))
        for rows in (_SIDE, 7):
            regions = together(program, program.target.block, rows)
            plan = make_plan(program, ARCHITECTURES["auto"], choice=Choice(regions=regions))
            taken.setdefault(rows, []).append(plan.arena_bytes)
    assert all(len(set(arenas)) == 1 for arenas in taken.values()), taken
    assert taken[7][0] < taken[_SIDE][0]


def test_every_channel_is_made_once(compiled: Packs) -> None:
    program = Program.as_compiled(compiled(Case(narrow=24, expansion=6)))
    for item in program.bottlenecks:
        for size in item.sizes:
            found = groups(item, size)
            assert [group.first for group in found] == [
                sum(len(group) for group in found[:number]) for number in range(len(found))
            ]
            assert sum(len(group) for group in found) == item.channels
            assert all(len(group) in item.sizes for group in found)


def test_the_smallest_plan_of_a_gated_network_runs_in_groups(compiled: Packs) -> None:
    """A gate needs all rows: on rows alone its inner tensors would be whole."""
    program = Program.as_compiled(compiled(CASES["gate"]))
    auto = ARCHITECTURES["auto"]
    least = fit(program, auto, LEAST).plan
    assert any(isinstance(region.cut, ChannelCut) for region in least.choice.regions)
    without = replace(program, bottlenecks=())
    assert least.total_bytes < fit(without, auto, LEAST).plan.total_bytes
    (line, *_) = explain_regions(least)
    inner = program.bottlenecks[0].channels
    assert "on groups of channels" in line
    assert f" of {inner}" in line
    roomy = fit(program, auto, Wanted(total_bytes=4 * least.total_bytes)).plan
    assert not any(isinstance(region.cut, ChannelCut) for region in roomy.choice.regions)


def test_what_cannot_be_a_group_is_refused(compiled: Packs) -> None:
    program = Program.as_compiled(compiled(CASES["gate"]))
    item = program.bottlenecks[0]
    first, end, size = item.first_piece, item.end_piece, item.sizes[0]
    for region, reason in (
        (Region(first, end, ChannelCut(size + 1, _SIDE)), "channels, not of"),
        (Region(first, end - 1, ChannelCut(size, _SIDE)), "are no bottleneck"),
        (Region(first, end, ChannelCut(size, 8)), "made of all rows"),
    ):
        with pytest.raises(RegionError, match=reason):
            planned_region(program, region)


@pytest.mark.parametrize(
    ("case", "rows"), [(Case(kernel=5, side=7), 2), (Case(side=8, below=True), 1)]
)
def test_inner_bands_of_rows_that_need_padding_are_refused(
    compiled: Packs, case: Case, rows: int
) -> None:
    """Above: of the second band, behind one row. Below: of the last but one, before one row."""
    program = Program.as_compiled(compiled(case))
    for item in program.bottlenecks:
        region = Region(item.first_piece, item.end_piece, ChannelCut(item.sizes[0], rows))
        with pytest.raises(RegionError, match="rows at a time need padding inside"):
            planned_region(program, region)
    assert program.bottlenecks


def test_strips_hold_what_a_group_makes(compiled: Packs) -> None:
    """Eq. 3: beside input and result a group of the expansion and one of the depthwise convolution.

    The result has one block of channels: then weights of a group lie in one place, and are not copied.
    """
    program = Program.as_compiled(compiled(Case(stride=2, narrow=host_target().block)))
    region = together(program, program.target.block, _SIDE)[0]
    plan = planned_region(program, region)
    item = bottleneck_of(program, region.pieces)
    made = [
        4 * program.target.block * math.prod(operator.shape[2:]) for operator in item.operators[:2]
    ]
    assert sum(made) == plan.live_bytes()


def test_partitions_keep_the_bottlenecks_that_they_have_whole(compiled: Packs) -> None:
    program = Program.as_compiled(compiled(CASES["added"]))
    first, second = program.bottlenecks
    cuts = Cuts(program)
    for place in cuts.places:
        parts = cuts.parts([place])
        held = [len(part.bottlenecks) for part in parts]
        assert held == [
            (first.end_piece <= place) + (second.end_piece <= place),
            (place <= first.first_piece) + (place <= second.first_piece),
        ]
        for part in parts:
            assert all(planned_region(part, region) for region in possible(part))


@pytest.mark.slow
def test_mobilenet_takes_a_third_of_its_expansion(pool: ReadPool, tmp_path: Path) -> None:
    """Seed 004 counts 5,619,712 bytes of MobileNetV2: input and expansion of its second block."""
    source = tmp_path / "m.onnx"
    onnx.save(filled(mobilenet_v2(224), seed=2), source)
    pack = open_pack(compile_onnx(source, tmp_path / "m"))
    program = Program.as_compiled(pack)
    regions = tuple(
        replace(region, cut=replace(region.cut, rows=-(-item.operators[-1].height // 8)))
        for region in together(program, program.target.block, 1)
        for item in [bottleneck_of(program, region.pieces)]
    )
    plan = make_plan(program, ARCHITECTURES["auto"], choice=Choice(regions=regions))
    assert plan.arena_bytes <= 5_619_712 / 3
    whole = answer(pack, pool)
    assert np.abs(answer(pack, pool, regions) - whole).max() <= 1e-5 * np.abs(whole).max()
