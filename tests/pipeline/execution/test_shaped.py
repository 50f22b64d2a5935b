"""A model in several shapes: shape answers as alone, in one memory that is no larger than planned."""

import itertools
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loader.pool.pool import ReadPool
from models.packs.pack import open_pack
from pipeline.budget.budget import Budget
from pipeline.budget.candidates import Candidate, share_budget
from pipeline.budget.sharing import partitioned_sharer, sharer
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.errors import DrainError, EngineClosedError, InputError
from pipeline.execution.lane import Lane
from pipeline.execution.opened import open_answering
from pipeline.execution.shaped import ShapedEngine
from pipeline.fitting.wanted import NOTHING, of_one_engine
from pipeline.planning.plan import Plan, PlanError
from pipeline.planning.validate import violations
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.models.packs.test_shapes import SHAPES, compiled, source, weights_text

# Any picture: its weights are the same for all, its activations are not.
NETWORK = f"""
<ir_version: 9, opset_import: ["" : 17]>
net (float[1, 3, h, w] x) => (float[1, 32, p, q] y)
<float[32, 3, 3, 3] one = {{{weights_text(864)}}}, float[32, 32, 3, 3] two = {{{weights_text(9216)}}},
 float[32, 32, 3, 3] three = {{{weights_text(9216)}}}>
{{
  a = Conv <pads = [1, 1, 1, 1]> (x, one)
  b = Relu(a)
  c = Conv <pads = [1, 1, 1, 1]> (b, two)
  d = Relu(c)
  y = Conv <pads = [1, 1, 1, 1]> (d, three)
}}
"""
SIZES = (48, 16, 32)
ENOUGH = 64 << 20


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("net")
    shapes = {"x": tuple((1, 3, size, size) for size in SIZES)}
    return compiled(folder, shapes, source(folder, NETWORK, "net"), chunk_bytes=8192)


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    with closing(CpuDevice(1)) as device:
        yield device


def planned(program: Program, device: CpuDevice, n_bytes: int) -> Plan:
    """Return the plan of all shapes within ``n_bytes``."""
    candidate = Candidate(program, device.adapt(ARCHITECTURES["auto"]), NOTHING)
    result = share_budget([candidate], Budget(n_bytes), "own")
    return of_one_engine(result.plans()[0]).plan


def min_bytes(program: Program, device: CpuDevice) -> int:
    """Return what the smallest plan of all shapes takes."""
    return sum(sharer("net", program, device.adapt(ARCHITECTURES["auto"])).least.values())


@contextmanager
def opened(pack: Path, device: CpuDevice, n_bytes: int = ENOUGH) -> Iterator[ShapedEngine]:
    program = prepare(open_pack(pack), device)
    with closing(ReadPool()) as pool:
        engine = open_answering(program, planned(program, device, n_bytes), device, pool)
        assert isinstance(engine, ShapedEngine)
        with closing(engine):
            yield engine


def picture(size: int) -> dict[str, NDArray[Any]]:
    return {"x": np.random.default_rng(size).normal(size=(1, 3, size, size)).astype(np.float32)}


def standalone_answers(pack: Path, device: CpuDevice) -> dict[int, NDArray[Any]]:
    """Return the answers of shape shape by itself."""
    answers = {}
    for name in SHAPES:
        program = prepare(open_pack(pack / name), device)
        with closing(ReadPool()) as pool:
            plan = planned(program, device, ENOUGH)
            with closing(open_answering(program, plan, device, pool)) as engine:
                size = program.inputs[0].shape[2]
                answers[size] = engine.run(picture(size))[0]["y"]
    return answers


@pytest.mark.parametrize("budget", ["enough", "middle", "least"])
def test_each_shape_has_the_bits_of_a_single_pack(
    pack: Path, device: CpuDevice, budget: str
) -> None:
    expected = standalone_answers(pack, device)
    program = prepare(open_pack(pack), device)
    minimum = min_bytes(program, device)
    limit = {"enough": ENOUGH, "middle": minimum + 40_000, "least": minimum}[budget]
    with opened(pack, device, limit) as engine:
        assert engine.plan.total_bytes <= limit
        for size in (*SIZES, *reversed(SIZES), 16, 16):
            np.testing.assert_array_equal(engine.run(picture(size))[0]["y"], expected[size])
        assert engine.statistics().sweeps == 8


def test_memory_is_that_of_the_largest_shape(pack: Path, device: CpuDevice) -> None:
    program = prepare(open_pack(pack), device)
    plan = planned(program, device, ENOUGH)
    singles = [
        planned(prepare(open_pack(pack / name), device), device, ENOUGH).memory for name in SHAPES
    ]
    for kind in ("staging", "ring", "arena", "scratch", "io"):
        assert plan.memory[kind] == max(single[kind] for single in singles), kind
    # Two layers are one piece in small shapes: what they have is there twice, in the file, too.
    assert plan.memory["resident"] == (pack / "weights.bin").stat().st_size
    assert plan.memory["resident"] < sum(single["resident"] for single in singles)
    largest = max(single["sessions"] for single in singles)
    assert largest < plan.memory["sessions"] <= sum(single["sessions"] for single in singles)
    for single, shape in zip(program.by_shape(), (plan, *plan.others), strict=True):
        assert not list(violations(single, shape))
    with opened(pack, device) as engine:
        allocated = engine.statistics().memory
        assert {kind: allocated[kind] for kind in ("ring", "resident", "arena")} == {
            kind: plan.memory[kind] for kind in ("ring", "resident", "arena")
        }


def test_more_memory_is_never_exceeded(pack: Path, device: CpuDevice) -> None:
    program = prepare(open_pack(pack), device)
    minimum = min_bytes(program, device)
    for more in (1, 30_000, 60_000, 120_000):
        plan = planned(program, device, minimum + more)
        assert plan.total_bytes <= minimum + more
        assert all(len(shape.stages[0]) == len(shape.reads) for shape in (plan, *plan.others))


def test_a_shape_that_nobody_compiled_is_refused(pack: Path, device: CpuDevice) -> None:
    with opened(pack, device) as engine:
        with pytest.raises(
            InputError, match=r"\[1, 3, 20, 20\].*\[1, 3, 48, 48\]; .*\[1, 3, 16, 16\]"
        ):
            engine.run(picture(20))
        with pytest.raises(InputError, match="'x' is missing"):
            engine.run({})
        with pytest.raises(InputError, match="float64"):
            engine.run({"x": picture(16)["x"].astype(np.float64)})
        assert engine.run(picture(16))[0]["y"].shape == (1, 32, 16, 16)


def test_after_a_sleep_each_shape_reads_its_weights_again(pack: Path, device: CpuDevice) -> None:
    expected = standalone_answers(pack, device)
    with opened(pack, device) as engine:
        for order in itertools.permutations(SIZES):
            assert engine.sleep()
            assert engine.is_asleep
            for size in order:
                np.testing.assert_array_equal(engine.run(picture(size))[0]["y"], expected[size])
            assert not engine.is_asleep


def test_where_one_shape_breaks_all_do(pack: Path, device: CpuDevice) -> None:
    with opened(pack, device) as engine:
        broken = engine._engines[2]
        broken._broken = DrainError("a read never ended")
        (answer,) = engine.run_lanes([Lane(picture(16))])
        assert isinstance(answer, DrainError)
        with pytest.raises(DrainError):
            engine.run(picture(48))
        assert engine.broken


def test_a_closed_model_answers_nothing(pack: Path, device: CpuDevice) -> None:
    with opened(pack, device) as engine:
        pass
    with pytest.raises(EngineClosedError):
        engine.run(picture(16))


def test_more_requests_than_planned_are_refused(pack: Path, device: CpuDevice) -> None:
    with opened(pack, device) as engine, pytest.raises(ValueError, match="2 lanes"):
        engine.run_lanes([Lane(picture(16)), Lane(picture(32))])


def test_partitions_have_one_shape(pack: Path, device: CpuDevice) -> None:
    program = prepare(open_pack(pack), device)
    with pytest.raises(PlanError, match="2 workers: a pack of several shapes has one"):
        partitioned_sharer("net", program, device.adapt(ARCHITECTURES["auto"]), 2)


def test_weights_stay_in_memory_for_the_smallest_shape(pack: Path, device: CpuDevice) -> None:
    """Where not all weights fit, all shapes have the same in memory, and read nothing ahead."""
    program = prepare(open_pack(pack), device)
    for more in (8_000, 20_000, 30_000):
        plan = planned(program, device, min_bytes(program, device) + more)
        shapes = (plan, *plan.others)
        assert len({shape.resident_bytes for shape in shapes}) == 1
        assert all(shape.choice.ahead == "never" for shape in shapes)
