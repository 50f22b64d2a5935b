"""Why a plan is as it is, in words with figures."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from pipeline.planning.draft import Draft
from pipeline.planning.plan import Plan
from pipeline.planning.streaming import Unit
from pipeline.planning.words import brief
from pipeline.program.channels import bottleneck_of
from pipeline.program.program import Program
from pipeline.program.region_plan import ChannelCut, Region, RowCut
from pipeline.program.steps import Phase, RegionSteps, Step, regions_of
from pipeline.timing.timeline import timeline

# Kernels that wait for less of the delay than this do not wait.
_NO_STALL = 0.01
_STRETCHES = 4
_SHORT = 0.01


def explain(program: Program, draft: Draft) -> tuple[str, ...]:
    """Return one line a decision, the bottleneck first."""
    names = _layer_names(program)
    return tuple(
        line
        for lines in (
            _bottleneck(draft, names),
            _kept(draft, names),
            _chunks(draft),
            _reads(draft),
            _ahead(draft),
        )
        for line in lines
    )


def _bottleneck(draft: Draft, names: dict[int, str]) -> Iterator[str]:
    idle, ring = draft.idle, brief(draft.choice.ring_bytes or 0)
    if not draft.groups:
        yield f"all weights stay in memory: the delay is that of the kernels, {_ms(idle.delay_seconds)}"
        return
    if idle.stall_seconds <= _NO_STALL * idle.delay_seconds:
        yield (
            f"kernels are the bottleneck ({_ms(draft.level.until[-1])}): a ring of {ring} hides all reads "
            f"but {_ms(idle.stall_seconds)}"
        )
        return
    first, last = _waiting(draft)
    read = sum(draft.durations.stages[0][: len(draft.groups)]) / draft.choice.depth
    yield (
        f"reads are the bottleneck {_between(draft.units, names, first, last)}: kernels wait "
        f"{_ms(idle.stall_seconds)} of {_ms(idle.delay_seconds)}; a sweep's reads take {_ms(read)}, its "
        f"kernels {_ms(draft.level.until[-1])}"
    )


def _waiting(draft: Draft) -> tuple[int, int]:
    """Return the first and the last of the units that kernels waited for noticeably."""
    starts, ends = draft.idle.starts[-1], draft.idle.ends[-1]
    gaps = [start - end for end, start in zip([0.0, *ends], starts, strict=False)]
    noticed = [index for index, gap in enumerate(gaps) if gap > _NO_STALL * sum(gaps)]
    kernels = [draft.starts[index] for index in noticed]
    own = [number for number, unit in enumerate(draft.units) if unit.steps.start in set(kernels)]
    return (own[0], own[-1]) if own else (0, len(draft.units) - 1)


def _kept(draft: Draft, names: dict[int, str]) -> Iterator[str]:
    streamed = {unit.steps for unit in draft.units}
    kept = [unit for unit in draft.level.units if unit.steps not in streamed]
    if not kept or not draft.groups:
        return
    stretches: list[list[Unit]] = [[kept[0]]]
    for before, unit in pairwise(kept):
        if before.spans.stop == unit.spans.start:
            stretches[-1].append(unit)
        else:
            stretches.append([unit])
    stretches.sort(key=lambda units: -sum(unit.length for unit in units))
    for units in stretches[:_STRETCHES]:
        size = brief(sum(unit.length for unit in units))
        until = draft.level.until
        seconds = until[units[-1].steps.stop] - until[units[0].steps.start]
        yield f"kept {size} {_between(units, names, 0, len(units) - 1)} (kernels {_ms(seconds)})"
    rest = sum(unit.length for units in stretches[_STRETCHES:] for unit in units)
    if rest:
        yield f"kept {brief(rest)} in {len(stretches) - _STRETCHES} other places"


def _chunks(draft: Draft) -> Iterator[str]:
    yield (
        f"chunks of up to {brief(draft.level.largest_bytes)}: {len(draft.level.until) - 1} kernels, "
        f"{_ms(draft.level.until[-1])} in all"
    )


def _reads(draft: Draft) -> Iterator[str]:
    if draft.groups:
        total = sum(group.read_bytes for group in draft.groups)
        yield (
            f"{len(draft.groups)} reads of up to {brief(max(group.read_bytes for group in draft.groups))}, "
            f"{draft.choice.depth} in flight, bring {brief(total)} a sweep"
        )


def _ahead(draft: Draft) -> Iterator[str]:
    count = draft.stages[0].ahead
    if count:
        cold = timeline(draft.stages, draft.durations).delay_seconds
        head = sum(group.read_bytes for group in draft.groups[:count])
        idle, again = draft.idle.delay_seconds, draft.again.delay_seconds
        when = "beside the last kernels" if draft.choice.ahead == "tail" else "in idle time"
        yield (
            f"the first {brief(head)} are read before a request comes, {when}: {_ms(idle)} instead of "
            f"{_ms(cold)}; right after another request {_ms(again)}"
        )


def _layer_names(program: Program) -> dict[int, str]:
    """Return the layer of each span."""
    return {
        span: layer.name
        for layer in program.layers
        for piece in program.pieces[layer.first_piece : layer.end_piece]
        if piece.span is not None
        for span in range(piece.span, piece.span + piece.n_spans)
    }


def _between(units: Sequence[Unit], names: dict[int, str], first: int, last: int) -> str:
    one = names.get(units[first].spans.start, f"kernel {units[first].steps.start}")
    other = names.get(units[last].spans.start, f"kernel {units[last].steps.start}")
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
