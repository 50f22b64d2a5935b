"""Why a plan is as it is, in words with figures."""

import math
from collections.abc import Iterator, Mapping, Sequence

from pipeline.planning.estimates import Estimates
from pipeline.planning.plan import Plan
from pipeline.planning.words import brief
from pipeline.program.channels import bottleneck_of
from pipeline.program.kernels import TableLookup
from pipeline.program.program import PreparedPiece, Program
from pipeline.program.region_plan import ChannelCut, Region, RowCut
from pipeline.program.steps import Phase, RegionSteps, Step, regions_of
from pipeline.timing.durations import Durations
from pipeline.timing.timeline import Timeline, timeline

# Kernels that wait for less of the delay than this do not wait.
_NO_STALL = 0.01
_STRETCHES = 4
_SHORT = 0.01


def explain(plan: Plan, estimates: Estimates) -> tuple[str, ...]:
    """Return one line a decision of how ``plan`` streams, the bottleneck first; times are estimated."""
    if len(plan.stages) == 1 or not plan.reads:
        seconds = sum(estimates.kernels(plan))
        return (
            f"all weights stay in memory: the delay is that of the kernels, about {_ms(seconds)}",
            *_tables(plan, estimates),
        )
    names = _layer_names(estimates.program)
    durations = estimates.durations(plan)
    return (
        _bottleneck(plan, durations, names),
        *_kept(plan, estimates.program, names),
        *_reads(plan, durations),
        *_tables(plan, estimates),
    )


def _tables(plan: Plan, estimates: Estimates) -> Iterator[str]:
    """Yield how rows of each table are read, if they are."""
    names = _layer_names(estimates.program)
    for step in plan.steps:
        kernel = step.kernel if isinstance(step, PreparedPiece) else None
        if isinstance(kernel, TableLookup):
            yield (
                f"rows of the table of layer {names[kernel.span]!r}, "
                f"{brief(kernel.rows * kernel.row_bytes)}, are read as a request needs them, through "
                f"{brief(kernel.buffer_bytes)}"
            )


def _bottleneck(plan: Plan, durations: Durations, names: Mapping[int, str]) -> str:
    idle, ring = timeline(plan.stages, durations, plan.stages[0].ahead), brief(plan.ring_bytes)
    kernels = sum(durations.stages[-1])
    if idle.stall_seconds <= _NO_STALL * idle.delay_seconds:
        return (
            f"kernels are the bottleneck (about {_ms(kernels)}): a ring of {ring} hides all reads but "
            f"{_ms(idle.stall_seconds)}"
        )
    first, last = (plan.reads[read].spans[0] for read in _waiting(plan, idle))
    read = sum(durations.stages[0][: len(plan.reads)]) / plan.choice.depth
    return (
        f"reads are the bottleneck {_between(names, first, last)}: kernels wait about "
        f"{_ms(idle.stall_seconds)} of {_ms(idle.delay_seconds)}; a sweep's reads take {_ms(read)}, its "
        f"kernels {_ms(kernels)}"
    )


def _waiting(plan: Plan, idle: Timeline) -> tuple[int, int]:
    """Return the first and the last of the reads that kernels waited for noticeably."""
    starts, ends = idle.starts[-1], idle.ends[-1]
    gaps = [start - end for end, start in zip([0.0, *ends], starts, strict=False)]
    noticed = {index for index, gap in enumerate(gaps) if gap > _NO_STALL * sum(gaps)}
    own = [read for read, users in enumerate(plan.users) if users.start in noticed]
    return (own[0], own[-1]) if own else (0, len(plan.users) - 1)


def _kept(plan: Plan, program: Program, names: Mapping[int, str]) -> Iterator[str]:
    """Yield the stretches of spans that stay by choice, the largest first."""
    stretches: list[list[int]] = []
    for span in plan.resident:
        if program.spans[span].resident:
            continue
        if stretches and stretches[-1][-1] + 1 == span:
            stretches[-1].append(span)
        else:
            stretches.append([span])

    def n_bytes(spans: Sequence[int]) -> int:
        return sum(program.spans[span].length for span in spans)

    stretches.sort(key=n_bytes, reverse=True)
    for spans in stretches[:_STRETCHES]:
        yield f"kept {brief(n_bytes(spans))} {_between(names, spans[0], spans[-1])}"
    if rest := sum(map(n_bytes, stretches[_STRETCHES:])):
        yield f"kept {brief(rest)} in {len(stretches) - _STRETCHES} other places"


def _reads(plan: Plan, durations: Durations) -> Iterator[str]:
    yield (
        f"{len(plan.reads)} reads of up to {brief(max(read.n_bytes for read in plan.reads))}, "
        f"{plan.choice.depth} in flight, load {brief(plan.read_bytes)} a pass, in chunks of up to "
        f"{brief(plan.largest_chunk_bytes)}"
    )
    if count := plan.stages[0].ahead:
        cold = timeline(plan.stages, durations).delay_seconds
        idle = timeline(plan.stages, durations, count).delay_seconds
        head = sum(read.n_bytes for read in plan.reads[:count])
        when = "beside the last kernels" if plan.choice.ahead == "tail" else "in idle time"
        yield (
            f"the first {brief(head)} are read before a request comes, {when}: about {_ms(idle)} instead "
            f"of {_ms(cold)}"
        )


def _layer_names(program: Program) -> dict[int, str]:
    """Return the layer of each span."""
    return {
        span: layer.name
        for layer in program.layers
        for piece in program.pieces[layer.first_piece : layer.end_piece]
        if (first := piece.span if piece.table_span is None else piece.table_span) is not None
        for span in range(first, first + piece.n_spans)
    }


def _between(names: Mapping[int, str], first: int, last: int) -> str:
    one, other = (names.get(span, f"of span {span}") for span in (first, last))
    return f"in layer {one!r}" if one == other else f"between layers {one!r} and {other!r}"


def _ms(seconds: float) -> str:
    """Return milliseconds; of a short delay as many decimals as distinguish it from the other."""
    return f"{1e3 * seconds:.{1 if seconds >= _SHORT else 2}f} ms"


# What runs on rows in a plan, in words with figures.


def explain_regions(plan: Plan, seconds: Sequence[float] | None = None) -> Iterator[str]:
    """Yield a line for each region; ``seconds``: of each step, where a profile has them."""
    for region in regions_of(plan.steps):
        took = None if seconds is None else _sum(plan.steps, seconds, region)
        yield _line(region, took)


def _line(region: RegionSteps, seconds: float | None) -> str:
    program, planned_region = region.program, region.plan.region
    phases = len(region.plan.phases)
    weights = sum(
        program.spans[span].length
        for span in range(region.span or 0, (region.span or 0) + region.n_spans)
        if region.span is not None
    )
    whole = _inner_bytes(region)
    where = "in the arena" if planned_region.in_arena else "at once"
    instead = f" instead of {brief(whole)} of whole values" if whole else ""
    cost = "" if seconds is None else f", {1e3 * seconds:.1f} ms"
    return (
        f"on {region_words(program, planned_region)} at a time in "
        f"{phases} {_plural('phase', phases)}; strips of {brief(region.plan.live_bytes())}{instead}, "
        f"{brief(weights)} of weights {where}{cost}"
    )


def region_words(program: Program, region: Region) -> str:
    """Return what a region runs on, of which layers, and how much of it at a time."""
    layers, rows = _layers(program, region.pieces), region.cut.rows
    size = f"{rows} {_plural('row', rows)}"
    match region.cut:
        case RowCut():
            return f"rows, {layers}: {size}"
        case ChannelCut(channels=channels):
            item = bottleneck_of(program, region.pieces)
            few = f", {size}" if rows < item.operators[-1].height else ""
            return f"groups of channels, {layers}: {channels} of {item.channels}{few}"


def _inner_bytes(region: RegionSteps) -> int:
    """Return the bytes of the values that exist as rows, or as groups of channels, only."""
    program = region.program
    if isinstance(region.plan.region.cut, ChannelCut):
        operators = bottleneck_of(program, region.plan.region.pieces).operators
        return sum(4 * math.prod(item.shape) for item in operators if item.kind == "each")
    outputs = {region.network.operators[number].output for number in region.plan.operators}
    inner = {program.row_values[number].value for number in outputs - region.plan.written}
    return sum(program.values[value].n_bytes for value in inner)


def _layers(program: Program, pieces: range) -> str:
    names = [
        layer.name
        for layer in program.layers
        if layer.first_piece < pieces.stop and layer.end_piece > pieces.start
    ]
    if not names:
        return f"pieces {pieces.start} to {pieces.stop - 1}"
    return f"layers {names[0]!r} to {names[-1]!r}" if len(names) > 1 else f"layer {names[0]!r}"


def _sum(steps: Sequence[Step], seconds: Sequence[float], region: RegionSteps) -> float:
    return sum(
        each
        for step, each in zip(steps, seconds, strict=True)
        if isinstance(step, Phase) and step.region is region
    )


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
