"""CSDF graphs of packs: what they become runs with the same bits, and is an admissible schedule."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from loader.pool.pool import ReadPool
from loader.readers.fakes import MemoryReader
from models.packs.pack import Pack
from models.packs.target import host_target
from papers.cnn.of_pack import cnn_of_pack
from papers.dataflow.consistency import firings
from papers.dataflow.conversion import WindowOverlap, convert
from papers.dataflow.csdf import DataflowError
from papers.dataflow.smallest_buffers import small_buffers
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.program.program import Program
from pipeline.program.region_plan import Region
from pipeline.program.steps import row_network
from pipeline.schedule.architectures import ARCHITECTURES
from tests.models.nets import inputs_for
from tests.papers.dataflow.row_regions import region_schedule, row_regions
from tests.pipeline.execution.test_rows import CASES, compiled
from tests.pipeline.program.regions import random_regions
from tests.pipeline.program.row_programs import random_network


def check(program: Program, regions: tuple[Region, ...]) -> int:
    """Check that each region is an admissible schedule; return the firings."""
    found = cnn_of_pack(program.pack.manifest)
    schedules = [region_schedule(program, found, region) for region in regions]
    return sum(len(list(schedule.moments())) for schedule in schedules)


def test_what_the_engine_does_is_an_admissible_schedule() -> None:
    count = 0
    for number in range(25):
        random = Random(number)
        program = random_network(random, random.randint(2, 14))
        count += check(program, random_regions(random, row_network(program)))
    assert count > 150


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_what_the_engine_does_in_many_programs(block: int) -> None:
    for number in range(1000 + 200 * block, 1000 + 200 * (block + 1)):
        random = Random(number)
        program = random_network(random, random.randint(2, 14))
        check(program, random_regions(random, row_network(program)))


def test_the_check_notices_another_order_and_smaller_strips() -> None:
    noticed = tried = 0
    for number in range(20):
        random = Random(number)
        program = random_network(random, 8)
        found = cnn_of_pack(program.pack.manifest)
        for region in random_regions(random, row_network(program)):
            made = region_schedule(program, found, region)
            wrong = [replace(made, order=made.order[::-1])] * (len(made.order) > 1)
            least = small_buffers(made.graph, made.counts).capacities
            wrong += [
                replace(made, capacities=(*least[:n], (room or 0) - 1, *least[n + 1 :]))
                for n, room in enumerate(least)
                if room
            ]
            for schedule in wrong:
                tried += 1
                noticed += refused(schedule.moments())
    assert noticed == tried > 50


def refused(moments: Iterator[object]) -> bool:
    try:
        list(moments)
    except DataflowError:
        return True
    return False


@pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")
@pytest.mark.parametrize(
    ("name", "rows"), [("strides", 1), ("residual", 2), ("joins", 1), ("a value a channel", 2)]
)
def test_a_csdf_graph_runs_with_the_bits_of_whole_tensors(
    name: str, rows: int, tmp_path: Path
) -> None:
    pack = compiled(CASES[name], tmp_path)
    graph = convert(
        cnn_of_pack(Program.as_compiled(pack).pack.manifest).cnn, WindowOverlap.CHANNEL, rows
    )
    assert small_buffers(graph, firings(graph)).proven
    regions = row_regions(Program.as_compiled(pack), rows)
    assert {piece for region in regions for piece in region.pieces} == row_network(
        Program.as_compiled(pack)
    ).covered
    assert check(Program.as_compiled(pack), regions)
    assert answer(pack, regions) == answer(pack, ())


def answer(pack: Pack, regions: tuple[Region, ...]) -> dict[str, bytes]:
    """Return the bytes of each output."""
    program = Program.as_compiled(pack)
    plan = make_plan(program, ARCHITECTURES["pre"], choice=Choice(regions=regions))
    reader = MemoryReader(pack.weights_path.read_bytes())
    inputs = inputs_for({port.name: port.shape for port in program.inputs})
    with (
        closing(ReadPool()) as pool,
        closing(CpuDevice()) as device,
        closing(Engine(program, plan, device, pool, reader)) as engine,
    ):
        engine.open()
        outputs, _ = engine.run(inputs)
        return {name: array.tobytes() for name, array in outputs.items()}
