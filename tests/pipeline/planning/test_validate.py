"""What the validator of plans notices: each thing that may be wrong, made wrong."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.pool.pool import ReadPool
from loader.readers.fakes import MemoryReader
from models.packs.pack import open_pack
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.opened import open_engine
from pipeline.planning.calls import BufferView, launches_of
from pipeline.planning.document import plan_checksum, plan_document
from pipeline.planning.live_ranges import Footprint, footprint, memory_use, without
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, InvalidPlanError, Locations, Plan, PlanError, partitioned
from pipeline.planning.validate import validate, violations
from pipeline.program.partitions import Cuts
from pipeline.program.program import Program
from pipeline.program.region_plan import Region, RowCut
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.schedule import Stage
from tests.examples import over
from tests.pipeline.plans import durations, plans, swept
from tests.pipeline.schedule.judge import violations as broken
from tests.pipeline.small import small_pack
from tests.pipeline.writes import writes


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program.as_compiled(open_pack(small_pack(tmp_path_factory.mktemp("small"))))


def planned(program: Program, name: str = "2s", **choice: object) -> Plan:
    return make_plan(program, ARCHITECTURES[name], choice=Choice(**choice))  # type: ignore[arg-type]


def with_buffer(plan: Plan, index: int, offset: int, shorter: int = 0) -> Plan:
    """Return ``plan`` with buffer ``index`` at another offset, or with so many bytes less."""
    buffers, old = list(plan.buffers), plan.buffers[index]
    buffers[index] = old._replace(offset=offset, n_bytes=old.n_bytes - shorter)
    return replace(plan, buffers=tuple(buffers))


def with_wait(plan: Plan, stage: int, index: int, after: tuple[int, ...]) -> Plan:
    """Return ``plan`` in which an operation waits for ``after``."""
    rows = list(plan.stages[stage].after)
    rows[index] = after
    stages = list(plan.stages)
    stages[stage] = Stage(stages[stage].name, tuple(rows), stages[stage].ahead)
    return replace(plan, stages=tuple(stages))


def two_live(program: Program) -> Plan:
    """The second layer writes where it reads what the first one wrote."""
    plan = planned(program)
    writes = [launch.groups[0].calls[0].writes[0] for launch in launches_of(plan)]
    first, second, *_ = dict.fromkeys(w.buffer for w in writes if isinstance(w, BufferView))
    return with_buffer(plan, second, offset=plan.buffers[first].offset)


def beyond_the_arena(program: Program) -> Plan:
    plan = planned(program)
    return replace(plan, arena_bytes=plan.arena_bytes - 64)


def too_small_a_buffer(program: Program) -> Plan:
    plan = planned(program)
    return with_buffer(plan, 0, plan.buffers[0].offset, shorter=4)


def weights_too_late(program: Program) -> Plan:
    plan = planned(program)
    return with_wait(plan, 1, plan.users[-1].start, (0, 0))


def weights_too_early(program: Program) -> Plan:
    plan = planned(program, ring_bytes=program.largest_chunk_bytes)
    return with_wait(plan, 0, len(plan.reads) - 1, (0, 0))


def all_wait(program: Program) -> Plan:
    plan = planned(program)
    return with_wait(plan, 0, 0, (0, len(plan.steps)))


def other_read_bytes(program: Program) -> Plan:
    plan = planned(program)
    read = plan.reads[0]
    return replace(plan, reads=(read._replace(n_bytes=read.n_bytes - 1), *plan.reads[1:]))


def two_resident(program: Program) -> Plan:
    plan = planned(program, "pre")
    resident = [i for i, buffer in enumerate(plan.buffers) if buffer.space == "resident"]
    return with_buffer(plan, resident[1], offset=0)


def weights_among_activations(program: Program) -> Plan:
    """Weights of a region lie where its line buffers do."""
    plan = planned(program, "auto", regions=(Region(0, 2, RowCut(2), True),))
    (index,) = (
        i
        for i, buffer in enumerate(plan.buffers)
        if buffer.space == "arena" and buffer.holds == "weights"
    )
    return with_buffer(plan, index, offset=plan.buffers[plan.line_buffers[0]].offset)


def one_line_buffer(program: Program) -> Plan:
    """Two line buffers of one phase in the same bytes."""
    plan = planned(program, "auto", regions=(Region(0, 2, RowCut(2)),))
    first, second = plan.line_buffers[:2]
    return with_buffer(plan, second, offset=plan.buffers[first].offset)


WRONG: dict[str, tuple[Callable[[Program], Plan], str]] = {
    "values": (two_live, "share bytes in step"),
    "resident": (two_resident, "share bytes"),
    "line buffers": (one_line_buffer, "share bytes in step"),
    "weights in the arena": (weights_among_activations, "share bytes in step"),
    "arena": (beyond_the_arena, "ends at"),
    "buffer": (too_small_a_buffer, "a call uses"),
    "late": (weights_too_late, "starts before its weights"),
    "early": (weights_too_early, "while it is used"),
    "deadlock": (all_wait, "wait for each other"),
    "promise": (other_read_bytes, "planned were"),
}


@over("name", sorted(WRONG))
def test_what_is_wrong_is_named(name: str, program: Program) -> None:
    make, message = WRONG[name]
    with pytest.raises(InvalidPlanError, match=message) as caught:
        validate(program, make(program))
    assert program.name in str(caught.value)


def test_what_has_no_buffer_is_named(program: Program) -> None:
    plan = planned(program)
    with pytest.raises(PlanError, match="no buffer for"):
        validate(program, replace(plan, values=Locations.of([None] * len(plan.values))))


def test_no_engine_is_opened_of_such_a_plan(program: Program) -> None:
    reader, device = MemoryReader(program.pack.weights_path.read_bytes()), CpuDevice(1)
    with closing(ReadPool()) as pool, pytest.raises(InvalidPlanError):
        open_engine(program, weights_too_late(program), device, pool, reader)
    assert reader.closed


def test_edges_have_buffers_of_their_size(program: Program) -> None:
    cuts = Cuts(program)
    cut = cuts.places[0]
    partitions = [planned(front, "pre") for front in cuts.parts([cut])]
    good = partitioned(partitions, [cut], [cuts.edge_bytes(cut)])
    validate(program, good)
    with pytest.raises(InvalidPlanError, match=f"edge at piece {cut}"):
        validate(program, partitioned(partitions, [cut], [cuts.edge_bytes(cut) - 64]))


@given(data=st.data())
def test_a_wait_that_matters_is_missed(data: st.DataObject) -> None:
    """Where the validator has nothing to say of fewer waits, no trace breaks a constraint."""
    source, plan = data.draw(plans())
    stage = data.draw(st.integers(0, len(plan.stages) - 1))
    if not len(plan.stages[stage]):
        return
    index = data.draw(st.integers(0, len(plan.stages[stage]) - 1))
    after = plan.stages[stage].after[index]
    fewer = with_wait(plan, stage, index, tuple(data.draw(st.integers(0, n)) for n in after))
    if not list(violations(source, fewer)):
        events = swept(fewer.stages, data.draw(durations(fewer))).events
        assert broken(events, writes(fewer), len(fewer.steps)) == []


def test_line_buffers_live_in_phases_and_not_between(program: Program) -> None:
    plan = planned(program, "auto", regions=(Region(0, 2, RowCut(2)),))
    use = memory_use(program, plan)
    times = [len(use.liveness[index].live) for index in plan.line_buffers if index in use.liveness]
    assert max(times) > 2
    values = [
        use.liveness[i].live
        for i, buffer in enumerate(plan.buffers)
        if (buffer.holds, buffer.space) == ("value", "arena")
    ]
    assert all(len(live) == 1 for live in values)


SHAPE = (3, 4, 5)


def drawn_footprint(data: st.DataObject, offset: int) -> Footprint:
    """Draw a part of an array of bytes, or of rows of another width, or a range."""
    shape = data.draw(st.sampled_from([SHAPE, (3, 5, 4), (4, 3, 5)]))
    box = tuple(
        range(low, data.draw(st.integers(low + 1, n)))
        for n in shape
        for low in [data.draw(st.integers(0, n - 1))]
    )
    has_box = data.draw(st.booleans())
    view = BufferView(0, offset, "uint8", shape, (box[0], box[1], box[2]) if has_box else None)
    return footprint(view)


@given(data=st.data())
def test_footprints_are_sets_of_bytes(data: st.DataObject) -> None:
    one, other = (drawn_footprint(data, data.draw(st.integers(0, 30))) for _ in range(2))
    left = without(one, other)
    bytes_of = [
        {byte for run in item.runs() for byte in range(*run)} for item in (one, other, *left)
    ]
    assert set().union(*bytes_of[2:]) == bytes_of[0] - bytes_of[1]
    assert one.covers(other) <= (bytes_of[1] <= bytes_of[0])
    assert min(bytes_of[0]) == one.first
    assert max(bytes_of[0]) + 1 == one.end


def test_a_document_lists_each_call_once(program: Program) -> None:
    plan = planned(program, "auto", regions=(Region(0, 2, RowCut(2)),))
    document = plan_document(plan)
    calls = [call for launch in document["launches"] for group in launch for call in group]
    assert set(calls) == set(range(len(document["calls"])))
    assert len(document["launches"]) == plan.launches
    assert len(document["waits"]["kernel"]) == len(plan.steps)
    assert sum(document["memory"].values()) == plan.total_bytes


def test_plans_that_do_the_same_have_one_checksum(program: Program, tmp_path: Path) -> None:
    plan = planned(program)
    again = Program.as_compiled(open_pack(small_pack(tmp_path)))
    assert plan_checksum(planned(again)) == plan_checksum(plan)
    assert plan_checksum(with_buffer(plan, 0, offset=64)) != plan_checksum(plan)
    assert plan_checksum(weights_too_late(program)) != plan_checksum(plan)
