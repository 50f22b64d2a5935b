"""Tables of a plan have all of it: each step, each read, each byte."""

from hypothesis import given

from pipeline.planning.plan import Plan
from pipeline.planning.tables import buffer_rows, launch_rows, read_rows
from pipeline.planning.words import brief
from pipeline.program.program import Program
from tests.pipeline.plans import plans
from tests.pipeline.program.test_regions import drawn


def steps_of(text: str) -> range:
    first, _, last = text.partition(" to ")
    return range(int(first), int(last or first) + 1)


def check(program: Program, plan: Plan) -> None:
    rows = list(launch_rows(program, plan))
    assert [step for row in rows for step in steps_of(row[0])] == list(range(len(plan.steps)))
    assert len(list(read_rows(plan))) == len(plan.stages[0]) or not plan.reads
    sizes = {row[0]: row[-1] for row in buffer_rows(plan)}
    assert sizes == {kind: brief(n) for kind, n in plan.memory.items() if n or kind in sizes}


@given(pair=plans())
def test_a_plan_in_steps_and_reads(pair: tuple[Program, Plan]) -> None:
    check(*pair)


def test_phases_of_a_region_are_a_row() -> None:
    for index in range(12):
        program, plan = drawn(index)
        check(program, plan)
        rows = [row for row in launch_rows(program, plan) if "phases of pieces" in row[1]]
        assert len(rows) == len(plan.regions)
