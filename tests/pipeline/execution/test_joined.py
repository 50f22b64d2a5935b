"""Steps in one launch: the same bits as one by one, and between launches all is as it was."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from loader.pool.pool import ReadPool
from loader.readers.fakes import MemoryReader
from models.packs.pack import open_pack
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.execution.errors import CancelledError
from pipeline.execution.lane import Lane
from pipeline.execution.opened import opened
from pipeline.planning.joined_launches import apart, joined
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.program.prepare import prepare
from pipeline.program.program import PreparedPiece, Program
from pipeline.program.region_plan import Region, RowCut
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.trace import TraceEvent
from tests.examples import over
from tests.models.compiler.optimising.test_quantised import qdq
from tests.models.nets import written
from tests.models.streamed import compiled
from tests.oracle.device import ReferenceDevice
from tests.pipeline.schedule.judge import violations
from tests.pipeline.small import small_pack
from tests.pipeline.writes import writes

Tensor = NDArray[np.float32]
#: By name: an architecture, and what is chosen.
PLANS = {
    "pre": ("pre", Choice()),
    "seq": ("seq", Choice()),
    "sync": ("sync", Choice()),
    "async": ("async", Choice(ring_bytes=64 << 10)),
    "one chunk": ("2s", Choice()),
    "several in one read": ("2s", Choice(ring_bytes=128 << 10, read_bytes=64 << 10)),
    "residents": ("auto", Choice(ring_bytes=64 << 10, resident=tuple(range(6)), ahead="tail")),
    "lanes": ("auto", Choice(ring_bytes=128 << 10, read_bytes=64 << 10, lanes=3)),
    "rows": ("auto", Choice(regions=(Region(0, 2, RowCut(2)),))),
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    folder = Path(tmp_path_factory.mktemp("repository"))
    return prepare(open_pack(small_pack(folder)), CpuDevice(1, native=False))


def planned(program: Program, name: str) -> Plan:
    architecture, choice = PLANS[name]
    plan = make_plan(program, ARCHITECTURES[architecture], choice=choice)
    return joined(program, plan)


def images(count: int) -> list[Tensor]:
    chosen = np.random.default_rng(4)
    return [chosen.standard_normal((1, 3, 16, 16), np.float32) for _ in range(count)]


def answers(engine: Engine) -> list[bytes]:
    """Return what it says of each of a few images, twice, with as many as it takes at a time."""
    given, lanes = images(3), engine.plan.choice.lanes
    found = []
    for first in [*range(0, 3, lanes)] * 2:
        sweep = [Lane({"image": image}) for image in given[first : first + lanes]]
        for answer in engine.run_lanes(sweep):
            assert not isinstance(answer, Exception)
            found.append(answer[0]["logits"].tobytes())
    return found


@pytest.mark.parametrize(
    ("name", "native"),
    [
        pytest.param(name, native, marks=pytest.mark.slow if (one + native) % 2 else ())
        for one, name in enumerate(PLANS)
        for native in (False, True)
    ],
)
def test_joined_is_the_same_as_apart(program: Program, name: str, native: bool) -> None:
    plan, device, pool = planned(program, name), CpuDevice(1, native=native), ReadPool()
    content = program.pack.weights_path.read_bytes()
    found = []
    for each in (plan, apart(plan)):
        reader = MemoryReader(content)
        with opened(program, each, device, pool, reader) as engine:
            found.append(answers(engine))
    pool.close()
    assert found[0] == found[1]


def test_quantised_kernels_join_and_their_scratch_is_that_of_the_largest(tmp_path: Path) -> None:
    device = CpuDevice(1, native=False)  # native kernels have a piece each
    quantised = prepare(compiled(written(qdq(), tmp_path / "m.onnx"), tmp_path), device)
    plan = joined(quantised, make_plan(quantised, ARCHITECTURES["pre"]))
    assert plan.launches < len(plan.steps) - 1
    alone = apart(plan)
    kept = sum(
        step.scratch_bytes
        for step in plan.steps
        if isinstance(step, PreparedPiece) and quantised.joins.get(step.graph) != "freeing"
    )
    assert plan.scratch_bytes <= make_plan(quantised, ARCHITECTURES["pre"]).scratch_bytes + kept
    given = {"x": np.random.default_rng(2).standard_normal((1, 64, 8, 8)).astype(np.float32)}
    with opened(quantised, plan, device) as one, opened(quantised, alone, device) as other:
        for _ in range(2):
            assert one.run(given)[0]["y"].tobytes() == other.run(given)[0]["y"].tobytes()


@over("name", ["pre", "several in one read", "residents", "lanes"])
def test_there_is_something_to_join(program: Program, name: str) -> None:
    plan = planned(program, name)
    assert plan.launches < len(plan.steps)


def test_a_device_that_joins_nothing_runs_them_one_by_one(program: Program) -> None:
    plan = planned(program, "pre")
    with (
        opened(program, plan, ReferenceDevice()) as engine,
        opened(program, plan, CpuDevice(1)) as other,
    ):
        (image,) = images(1)
        found, expected = (each.run({"image": image})[0]["logits"] for each in (engine, other))
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("name", ["pre", "several in one read"])
def test_a_trace_of_joined_steps_is_one_of_the_schedule(program: Program, name: str) -> None:
    plan, events = planned(program, name), list[TraceEvent]()
    with opened(program, plan, CpuDevice(1)) as engine:
        engine.run({"image": images(1)[0]}, record=events.append)
    kernels = len(plan.steps)
    assert not violations(events, writes(plan), kernels)
    ends = [event for event in events if (event.what, event.stage) == ("complete", "kernel")]
    assert len(ends) == len(plan.steps)


def test_who_cancels_is_heard_before_each_launch(program: Program) -> None:
    plan = planned(program, "several in one read")
    asked = 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked == 3

    with opened(program, plan, CpuDevice(1)) as engine:
        (image,) = images(1)
        expected = engine.run({"image": image})[0]["logits"]
        with pytest.raises(CancelledError):
            engine.run({"image": image}, cancelled=cancelled)
        again = engine.run({"image": image})[0]["logits"]
    assert again.tobytes() == expected.tobytes()
