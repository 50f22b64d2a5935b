"""Which steps of a plan are one launch, and what that takes.

A launch costs some 20 to 60 us beside what it computes: Python, ONNX Runtime's preparations, and a pool of
threads to wake. Steps that follow each other are one launch where nothing comes between them: the later
ones need no weights that the first did not need, and nothing waits for the end of the earlier ones. So the
schedule is the same, and so are its bounds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

from models.runtime.joined_graphs import JOINED_TYPES
from pipeline.planning.plan import Plan
from pipeline.planning.streaming import spaced
from pipeline.program.choice import choose_pieces
from pipeline.program.program import PreparedPiece, Program
from pipeline.program.sessions import SESSION_BYTES, opened_by, session_bytes
from pipeline.program.steps import Step
from pipeline.program.work import computing_seconds
from pipeline.schedule.schedule import Stage, awaited

# About what a launch of several steps takes at most on a core, by their operations. Within a launch no
# other request begins, is cancelled or reaches its deadline; a large kernel alone takes as long.
_LAUNCH_SECONDS = 20e-3
# What pieces with values of their own keep until a launch ends.
_MOST_SCRATCH_BYTES = 64 << 10
# Of what could hold weights, the part that joined kernels may take: one in so many.
_RESERVED = 16
# Of what launches allocate, the lengths that are tried are so far apart.
_RATIO = 1.5
#: As ``joined_bytes`` of a choice: launches as ``smallest_launches`` has them.
SMALLEST_LAUNCHES = 1


def joined(program: Program, plan: Plan, most_bytes: int | None = None) -> Plan:
    """Return ``plan`` with launches of several steps that take at most ``most_bytes`` more; None: all.

    Its choice says how many bytes that were, and makes the same plan again. On a GPU a launch costs little.
    """
    if program.target.capability is not None:
        return plan
    with_runs = _within(program, plan, tuple(_runs(program, plan.steps, plan.stages)), most_bytes)
    # Where they are equal to each other they may even take less.
    added = max(_added(with_runs, plan), SMALLEST_LAUNCHES + 1) if with_runs.runs else 0
    return replace(with_runs, choice=replace(plan.choice, joined_bytes=added))


def smallest_launches(program: Program, plan: Plan) -> Plan:
    """Return ``plan`` with launches of several steps that take no more than steps alone, and least.

    Its choice makes the same plan again.
    """
    if program.target.capability is not None:
        return plan
    runs = tuple(_runs(program, plan.steps, plan.stages))
    possible_plans = [_within(program, plan, runs, 0), *_with_less_scratch(program, plan, runs)]
    min_plan = min(possible_plans, key=lambda item: item.total_bytes)
    return replace(
        min_plan,
        choice=replace(plan.choice, joined_bytes=SMALLEST_LAUNCHES if min_plan.runs else 0),
    )


def _within(program: Program, plan: Plan, runs: tuple[range, ...], max_bytes: int | None) -> Plan:
    """Return ``plan`` with ``runs`` that take at most ``max_bytes`` more: all, or the first ones."""
    with_runs = _with(program, plan, runs)
    if max_bytes is None or _added(with_runs, plan) <= max_bytes:
        return with_runs
    return _with(program, plan, tuple(_affordable(program, plan, runs, max_bytes)))


def _affordable(
    program: Program, plan: Plan, runs: Sequence[range], most_bytes: int
) -> Iterator[range]:
    """Yield those of ``runs`` that together take at most ``most_bytes`` more, the first ones first."""
    opened, lanes, scratch = opened_by(program, plan.steps), plan.choice.lanes, plan.scratch_bytes
    most = plan.session_bytes + plan.scratch_bytes + most_bytes
    for run in runs:
        pieces = _pieces(plan.steps[run.start : run.stop])
        opened.join(pieces)
        longer = max(scratch, _scratch_bytes(program, pieces))
        if opened.n_bytes(lanes) + longer <= most:
            scratch = longer
            yield run
        else:
            opened.join(pieces, -1)


def _with_less_scratch(program: Program, plan: Plan, runs: Sequence[range]) -> Iterator[Plan]:
    """Yield ``plan`` with ``runs`` in parts, where whole ones allocate more than its steps.

    Parts of a few lengths are tried: more launches take more sessions, and longer ones more scratch.
    """
    min_bytes = plan.scratch_bytes
    sizes = [tuple(_growing(program, _pieces(plan.steps[run.start : run.stop]))) for run in runs]
    max_bytes = max((last for *_, last in sizes), default=0)
    if max_bytes <= min_bytes:
        return
    lengths = {min_bytes, *(n_bytes for first, *more in sizes for n_bytes in more)}
    for limit in spaced(sorted(item for item in lengths if min_bytes <= item < max_bytes), _RATIO):
        segments = (item for run in runs for item in _segments(program, plan.steps, run, limit))
        yield _with(program, plan, tuple(segments))


def _segments(
    program: Program, steps: Sequence[Step], run: range, max_bytes: int
) -> Iterator[range]:
    """Yield the parts of ``run``, of two steps and more, that allocate at most ``max_bytes`` each."""
    first = run.start
    while first < run.stop:
        sizes = _growing(program, _pieces(steps[first : run.stop]))
        count = sum(1 for _ in takewhile(lambda size: size <= max_bytes, sizes))
        if count > 1:
            yield range(first, first + count)
        first += max(count, 1)


def _added(longer: Plan, plan: Plan) -> int:
    return longer.total_bytes - plan.total_bytes


def _with(program: Program, plan: Plan, runs: tuple[range, ...]) -> Plan:
    pieces_of_runs = [_pieces(plan.steps[run.start : run.stop]) for run in runs]
    return replace(
        plan,
        runs=runs,
        session_bytes=session_bytes(program, plan.steps, plan.choice.lanes, runs),
        scratch_bytes=max(
            plan.scratch_bytes, *(_scratch_bytes(program, run) for run in pieces_of_runs), 0
        ),
    )


def apart(plan: Plan) -> Plan:
    """Return ``plan`` with each step a launch of its own, to measure them."""
    return replace(plan, runs=())


def reserved_bytes(program: Program, weight_bytes: int) -> int:
    """Return what to leave for joined kernels of what could hold ``weight_bytes``: a small part of these.

    More memory leaves more for weights, too.
    """
    return max(0, min(program.made(_together_bytes), weight_bytes // _RESERVED))


def _together_bytes(program: Program) -> int:
    """Return what joining all that could run with others takes, in the coarsest chunks."""
    kernels = [piece for piece in choose_pieces(program, None) if _joins(program, piece)]
    least = session_bytes(program, kernels)
    return session_bytes(program, kernels, runs=[range(len(kernels))]) - least if kernels else 0


def joinable_bytes(program: Program, steps: Sequence[Step]) -> int:
    """Return the most bytes of sessions that fewer launches of ``steps`` could save."""
    kinds = {
        step.graph for step in steps if isinstance(step, PreparedPiece) and _joins(program, step)
    }
    return SESSION_BYTES * max(len(kinds) - 1, 0)


def _runs(program: Program, steps: Sequence[Step], stages: Sequence[Stage]) -> Iterator[range]:
    ended = awaited(stages)
    first, seconds = 0, 0.0
    for position, step in enumerate(steps):
        takes = _seconds(step)
        if (
            position - 1 in ended
            or _waits(stages[-1], position)
            or not _joins(program, steps[position - 1])
            or not _joins(program, step)
            or seconds + takes > _LAUNCH_SECONDS
        ):
            if position - first > 1:
                yield range(first, position)
            first, seconds = position, 0.0
        seconds += takes
    if len(steps) - first > 1:
        yield range(first, len(steps))


def _waits(kernels: Stage, position: int) -> bool:
    """Return whether kernel ``position`` waits for more than the one before it did."""
    if not position:
        return True
    before, after = (kernels.after[index][:-1] for index in (position - 1, position))
    return any(now > then for then, now in zip(before, after, strict=True))


def _joins(program: Program, step: Step) -> bool:
    """Return whether ``step`` may be one of several."""
    if not isinstance(step, PreparedPiece):
        return False
    joining = program.joins.get(step.graph)
    return (
        joining is not None
        and (joining == "freeing" or step.scratch_bytes <= _MOST_SCRATCH_BYTES)
        and all(operand.dtype in JOINED_TYPES for operand in (*step.inputs, *step.outputs))
    )


def _seconds(step: Step) -> float:
    """Return about how long ``step`` takes on a core."""
    return computing_seconds(step) if isinstance(step, PreparedPiece) else 0.0


def _scratch_bytes(program: Program, run: Sequence[PreparedPiece]) -> int:
    """Return what pieces of a launch allocate: ONNX Runtime may keep values of one until all have run."""
    return max(_growing(program, run), default=0)


def _growing(program: Program, run: Sequence[PreparedPiece]) -> Iterator[int]:
    """Yield what the first pieces of a launch allocate together: of one, of two, to all of ``run``."""
    kept, own = 0, 0
    for piece in run:
        if program.joins[piece.graph] == "freeing":
            own = max(own, piece.scratch_bytes)
        else:
            kept += piece.scratch_bytes
        yield kept + own


def _pieces(steps: Sequence[Step]) -> list[PreparedPiece]:
    return [step for step in steps if isinstance(step, PreparedPiece)]
