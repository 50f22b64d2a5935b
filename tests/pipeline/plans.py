"""Plans and durations drawn at random, for what calculates with both."""

from collections.abc import Sequence
from typing import NamedTuple, get_args

from hypothesis import strategies as st

from pipeline.planning.make import make_plan
from pipeline.planning.plan import Ahead, Choice, Plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.schedule import Stage
from pipeline.schedule.trace import TraceEvent
from pipeline.timing.durations import Durations
from pipeline.timing.timeline import timeline, trace
from tests.pipeline.synthetic import PAGE, programs


@st.composite
def plans(draw: st.DrawFn, max_pieces: int = 16) -> tuple[Program, Plan]:
    """Draw a program and a plan of it under any architecture."""
    source = draw(programs(max_pieces))
    architecture = ARCHITECTURES[draw(st.sampled_from(sorted(ARCHITECTURES)))]
    slots = architecture.slots or 1
    kept = draw(st.sets(st.integers(0, max(len(source.spans) - 1, 0)), max_size=4))
    choice = Choice(
        ring_bytes=slots * source.largest_chunk_bytes + draw(st.integers(0, 20)) * PAGE,
        read_bytes=draw(st.sampled_from([None, PAGE, 4 * PAGE, 16 * PAGE])),
        depth=draw(st.integers(1, 3)),
        resident=tuple(sorted(kept)),
        ahead=draw(st.sampled_from(get_args(Ahead))),
    )
    return source, make_plan(source, architecture, choice=choice)


@st.composite
def durations(draw: st.DrawFn, plan: Plan, disturbed: bool = True) -> Durations:
    """Draw how long each operation of ``plan`` takes; a read for the next sweep as long as in this one."""
    seconds = st.integers(0, 50).map(lambda ticks: ticks / 8)
    rows = [
        draw(st.lists(seconds, min_size=count, max_size=count))
        for count in (len(stage) - stage.ahead for stage in plan.stages)
    ]
    rows[0] += rows[0][: plan.stages[0].ahead]
    disturbance = draw(st.sampled_from([0.0, 0.125])) if disturbed else 0.0
    return Durations(tuple(map(tuple, rows)), plan.choice.depth, disturbance)


class Swept(NamedTuple):
    """A sweep as it is predicted: what an engine would report."""

    delay_seconds: float
    events: list[TraceEvent]


def swept(stages: Sequence[Stage], times: Durations, carried: int = 0) -> Swept:
    """Return the sweep whose first ``carried`` reads are complete when it begins."""
    line = timeline(stages, times, carried)
    return Swept(line.delay_seconds, list(trace(stages, line, carried)))
