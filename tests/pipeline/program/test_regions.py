"""Random networks on rows: what every kernel reads is what it should, at the planned offsets."""

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from threading import Barrier

import pytest

from models.network.windows import Window
from models.packs.records.pieces import Operand, Piece, Value
from models.packs.records.ports import Port
from models.packs.records.row_parts import RowInput, RowOperator, RowValue
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.planning.validate import violations as faults
from pipeline.program import steps
from pipeline.program.kernels import OrtGraph
from pipeline.program.program import PreparedPiece, Program
from pipeline.program.region_plan import (
    AreaCopy,
    GraphCall,
    Region,
    RegionError,
    RegionPlan,
    RowCut,
)
from pipeline.program.regions import plan_region
from pipeline.program.row_network import RowNetwork
from pipeline.program.steps import (
    Phase,
    choose_steps,
    planned_region,
    row_network,
)
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.timing.durations import Durations
from tests.examples import over
from tests.pipeline.plans import swept
from tests.pipeline.program.promises import check_sketches
from tests.pipeline.program.regions import random_regions
from tests.pipeline.program.row_programs import random_network
from tests.pipeline.program.tagged_memory import TaggedMemory, WrongError
from tests.pipeline.schedule.judge import violations
from tests.pipeline.synthetic import program
from tests.pipeline.writes import arena_weights, writes


def drawn(number: int) -> tuple[Program, Plan]:
    """Return program ``number``: always the same one."""
    random = Random(number)
    program = random_network(random, random.randint(2, 14))
    regions = random_regions(random, row_network(program))
    architecture = ARCHITECTURES[random.choice(sorted(ARCHITECTURES))]
    return program, make_plan(program, architecture, choice=Choice(regions=regions))


def _even(plan: Plan) -> Durations:
    return Durations(tuple((1.0,) * len(stage) for stage in plan.stages), plan.choice.depth)


def check(number: int) -> int:
    """Run program ``number`` on tags; return how many regions it has."""
    program, plan = drawn(number)
    assert violations(swept(plan.stages, _even(plan)).events, writes(plan), len(plan.steps)) == []
    assert list(faults(program, plan)) == []
    TaggedMemory(program, plan).run()
    return len(plan.choice.regions)


def test_programs_have_weights_in_the_arena() -> None:
    """Most do where any region may, and memory that is used at once by mistake is noticed."""
    plans = [drawn(number) for number in range(30)]
    brought = [(program, plan) for program, plan in plans if arena_weights(plan)]
    assert len(brought) > 2
    moved = [(program, _at_the_end(plan)) for program, plan in brought]
    assert any(_is_wrong(program, plan) for program, plan in moved)
    assert all(list(faults(*pair)) for pair in moved if _is_wrong(*pair))


def _at_the_end(plan: Plan) -> Plan:
    """Return ``plan`` where weights in the arena lie at its end."""
    end, moved = plan.lane_bytes, arena_weights(plan)
    buffers = (
        buffer._replace(offset=end - buffer.n_bytes) if buffer in moved else buffer
        for buffer in plan.buffers
    )
    return replace(plan, buffers=tuple(buffers))


@pytest.mark.parametrize(
    "block", [*range(2), *(pytest.param(block, marks=pytest.mark.slow) for block in range(2, 10))]
)
def test_every_kernel_reads_what_it_should(block: int) -> None:
    regions = [check(number) for number in range(30 * block, 30 * (block + 1))]
    assert sum(regions) > 15


def test_the_check_notices_what_is_left_out() -> None:
    """Every kernel; of what puts rows together nearly all: the same rows may lie there from before."""
    noticed: Counter[tuple[bool, bool]] = Counter()
    for number in range(5):
        program, plan = drawn(number)
        for position, step in enumerate(plan.steps):
            if not isinstance(step, Phase):
                continue
            for left_out, action in enumerate(step.region.plan.phases[step.number]):
                found = _is_wrong(program, _without(plan, position, left_out))
                noticed[isinstance(action, GraphCall), found] += 1
    assert noticed[True, True] > 40
    assert noticed[True, False] == 0
    assert noticed[False, True] > 9 * noticed[False, False] > 0


def _is_wrong(program: Program, plan: Plan) -> bool:
    try:
        TaggedMemory(program, plan).run()
    except WrongError:
        return True
    return False


def _without(plan: Plan, position: int, left_out: int) -> Plan:
    """Return ``plan`` with a phase that leaves an action out."""
    step = plan.steps[position]
    assert isinstance(step, Phase)
    phases = [*step.region.plan.phases]
    actions = phases[step.number]
    phases[step.number] = actions[:left_out] + actions[left_out + 1 :]
    region = replace(step.region, plan=replace(step.region.plan, phases=tuple(phases)))
    steps = tuple(
        replace(other, region=region)
        if isinstance(other, Phase) and other.region is step.region
        else other
        for other in plan.steps
    )
    return replace(plan, steps=steps)


def test_the_check_notices_memory_in_two_places_at_once() -> None:
    noticed = 0
    for number in range(10):
        program, plan = drawn(number)
        for strip in plan.line_buffers:
            buffers = list(plan.buffers)
            buffers[strip] = buffers[strip]._replace(offset=0)
            moved = replace(plan, buffers=tuple(buffers))
            wrong = _is_wrong(program, moved)
            noticed += wrong
            assert not wrong or list(faults(program, moved))
    assert noticed > 10


def sum_over_what_it_adds(above: int) -> Program:
    """A sum over the network's first value, of which a 3 x 3 window is read at the same time."""
    kinds = [("x", None), ("a", None), ("y", 0)]
    shape = (1, 2, 6, 1)
    values = tuple(
        Value(name=name, dtype="float32", shape=shape, parent=parent) for name, parent in kinds
    )
    rows = tuple(
        RowValue(name=held.name, dtype="float32", shape=shape, value=number, planes=2)
        for number, held in enumerate(values)
    )

    def operand(number: int) -> Operand:
        return Operand(kind="value", index=number, dtype="float32", shape=shape)

    window = Window(3, before=above)
    taken = (
        (RowInput(row_value=0, window=window),),
        (RowInput(row_value=1), RowInput(row_value=0)),
    )
    operators = tuple(
        RowOperator(
            graph=0, first_piece=n, end_piece=n + 1, inputs=inputs, weights=(), output=n + 1
        )
        for n, inputs in enumerate(taken)
    )
    pieces = tuple(
        PreparedPiece.of(
            Piece(
                graph=0,
                span=None,
                inputs=tuple(operand(item.row_value) for item in inputs),
                outputs=(operand(number + 1),),
            ),
            OrtGraph(0, resident=False),
        )
        for number, inputs in enumerate(taken)
    )
    ports = [Port(name=values[n].name, dtype="float32", shape=shape, value=n) for n in (0, 2)]
    return replace(
        program([], []),
        values=values,
        row_values=rows,
        row_operators=operators,
        row_kernels=(OrtGraph(0, resident=False), OrtGraph(0, resident=False)),
        pieces=pieces,
        own=range(len(pieces)),
        inputs=(ports[0],),
        outputs=(ports[1],),
    )


@over("above, rows, loaded", [(1, 2, True), (1, 6, False), (0, 2, False)])
def test_rows_that_are_still_needed_are_loaded_before_others_overwrite_them(
    above: int, rows: int, loaded: bool
) -> None:
    """The window of the next phase begins ``above`` rows before those that were written."""
    source = sum_over_what_it_adds(above)
    region = Region(0, 2, RowCut(rows))
    TaggedMemory(
        source, make_plan(source, ARCHITECTURES["pre"], choice=Choice(regions=(region,)))
    ).run()
    read = [
        action.source.rows
        for phase in planned_region(source, region).phases
        for action in phase
        if isinstance(action, AreaCopy) and action.source.strip is None
    ]
    assert (sum(read) == 6) == loaded  # each row once, or by both of its readers


@pytest.mark.slow
@pytest.mark.parametrize("block", range(100))
def test_every_kernel_of_many_programs_reads_what_it_should(block: int) -> None:
    for number in range(1000 + 100 * block, 1000 + 100 * (block + 1)):
        check(number)


def test_the_regions_of_one_choice_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    network, plan = next(
        found for found in map(drawn, range(1000)) if len(found[1].choice.regions) > 1
    )
    made: list[Region] = []

    def planned(of: RowNetwork, region: Region) -> RegionPlan:
        made.append(region)
        return plan_region(of, region)

    monkeypatch.setattr(steps, "_MOST_PLANS", 1)
    monkeypatch.setattr(steps, "plan_region", planned)
    network.let_go()
    for _ in range(3):
        choose_steps(network, None, plan.choice.regions)
    assert sorted(made, key=lambda region: region.first_piece) == list(plan.choice.regions)


@pytest.mark.slow
def test_threads_plan_regions_of_a_network_side_by_side() -> None:
    """As planning does that was cancelled, and what was asked for next; few plans are kept."""
    network = random_network(Random(3), 14)
    found = {
        region
        for number in range(200)
        for region in random_regions(Random(number), row_network(network))
    }
    barrier, interval = Barrier(4), sys.getswitchinterval()

    def plan(order: int) -> None:
        regions = sorted(
            found, key=lambda region: (region.cut.rows * order % 7, region.first_piece)
        )
        barrier.wait()
        for region in regions:
            assert planned_region(network, region).region == region

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(plan, range(1, 5)))
    finally:
        sys.setswitchinterval(interval)
    assert len(found) > 24


# Sketches against regions, on random networks.


@pytest.mark.parametrize("block", range(2))
def test_sketches_are_the_regions_that_can_be(block: int) -> None:
    seen = 0
    for number in range(10 * block, 10 * block + 6):
        random = Random(number)
        seen += check_sketches(random_network(random, random.randint(2, 14)))
    assert seen > 60


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_sketches_are_the_regions_that_can_be(block: int) -> None:
    for number in range(20 + 100 * block, 20 + 100 * (block + 1)):
        random = Random(number)
        check_sketches(random_network(random, random.randint(2, 14)))


def test_a_region_that_ends_after_the_last_piece_is_refused() -> None:
    """A profile or a file of plans that was edited may have one of any length."""
    network = program([2, 2], [True] * 2)
    with pytest.raises(RegionError, match="after the last piece"):
        choose_steps(network, None, [Region(0, 1 << 41, RowCut(1))])
