"""A plan as tables: its launches, its reads, and where its buffers lie."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from pipeline.planning.calls import Argument, BufferView, PlanLaunch, launches_of
from pipeline.planning.plan import Plan, PlanBuffer
from pipeline.planning.words import brief
from pipeline.program.program import Program
from pipeline.program.region_plan import Region
from pipeline.program.steps import Phase

Row = tuple[str, ...]

LAUNCH_COLUMNS = ("steps", "what runs", "calls", "after", "weights", "reads", "writes")
READ_COLUMNS = ("read", "bytes", "to", "after steps", "used by steps")
BUFFER_COLUMNS = ("space", "buffers", "bytes in them", "size")


def launch_rows(program: Program, plan: Plan) -> Iterator[Row]:
    """Yield a row for each launch, and one for all phases of a region.

    ``after``: how many reads, or copies, have ended. Buffers are their space and bytes there, [from to).
    """
    launches = launches_of(plan, program.layers_by_place())
    for region, run in groupby(launches, lambda launch: _region_of(plan, launch)):
        if region is None:
            for launch in run:
                yield _launch_row(plan, [launch], launch.groups[0].name or "copies")
            continue
        phases = list(run)
        pieces = region.pieces
        what = f"{len(phases)} phases of pieces {pieces.start} to {pieces.stop - 1}"
        yield _launch_row(plan, phases, what)


def read_rows(plan: Plan) -> Iterator[Row]:
    """Yield a row for each read, and for those of the next inference that are ahead."""
    weights, users, stage = plan.weights, plan.users, plan.stages[0]
    for index, after in enumerate(stage.after):
        read = plan.reads[index % len(plan.reads)]
        steps = users[index % len(plan.reads)]
        target = _bytes(plan.buffers[read.buffer])
        if plan.copies:
            target = f"{target}, then {_bytes(weights[index % len(plan.reads)])}"
        ahead = index >= len(plan.reads)
        used_by = "in the next inference" if ahead else _steps(steps)
        yield (f"{index}", brief(read.n_bytes), target, f"{after[-1]}", used_by)


def buffer_rows(plan: Plan) -> Iterator[Row]:
    """Yield a row for each space of the plan, and for each reserve."""
    filled: dict[str, list[int]] = {}
    for buffer in plan.buffers:
        filled.setdefault(buffer.space, []).append(buffer.n_bytes)
    for kind, n_bytes in plan.memory.items():
        sizes = filled.get(kind)
        if sizes:
            yield (kind, f"{len(sizes)}", brief(sum(sizes)), brief(n_bytes))
        elif n_bytes:
            yield (kind, "", "", brief(n_bytes))


def _region_of(plan: Plan, launch: PlanLaunch) -> Region | None:
    step = plan.steps[launch.steps.start]
    return step.region.plan.region if isinstance(step, Phase) else None


def _launch_row(plan: Plan, launches: Sequence[PlanLaunch], what: str) -> Row:
    steps = range(launches[0].steps.start, launches[-1].steps.stop)
    groups = {group.id: group for launch in launches for group in launch.groups}
    called = sum(len(group.calls) for launch in launches for group in launch.groups)
    calls = [call for group in groups.values() for call in group.calls]
    counted = f"{called}" if called == len(calls) else f"{called}, {len(calls)} distinct"
    after = max(plan.stages[-1].after[step][-2] for step in steps) if plan.reads else 0
    reads = _used(plan, (view for call in calls for view in call.reads))
    writes = _used(plan, (view for call in calls for view in call.writes))
    weights = [buffer for buffer in reads if buffer.holds == "weights"]
    others = [buffer for buffer in reads if buffer.holds != "weights"]
    return (_steps(steps), what, counted, f"{after}", *map(_listed, (weights, others, writes)))


def _used(plan: Plan, arguments: Iterable[Argument]) -> list[PlanBuffer]:
    """Return the buffers of ``arguments``, each once, in their order."""
    indices = dict.fromkeys(view.buffer for view in arguments if isinstance(view, BufferView))
    return [plan.buffers[index] for index in indices]


def _listed(buffers: Sequence[PlanBuffer]) -> str:
    lines = sum(buffer.holds == "line_buffer" for buffer in buffers)
    listed = [_bytes(buffer) for buffer in buffers if buffer.holds != "line_buffer"]
    return ", ".join([*listed, *([f"{lines} line buffers"] if lines else [])])


def _bytes(buffer: PlanBuffer) -> str:
    return f"{buffer.space} {buffer.offset} to {buffer.end}"


def _steps(steps: range) -> str:
    return f"{steps.start}" if len(steps) == 1 else f"{steps.start} to {steps.stop - 1}"
