"""What runs on rows in a plan, in words with figures."""

import math
from collections.abc import Iterator, Sequence

from pipeline.planning.plan import Plan
from pipeline.planning.words import brief
from pipeline.program.channels import bottleneck_of
from pipeline.program.cuts import ChannelCut, Region, RowCut, TileCut
from pipeline.program.program import Program
from pipeline.program.steps import Phase, RegionSteps, Step, regions_of


def explain_regions(
    program: Program, plan: Plan, seconds: Sequence[float] | None = None
) -> Iterator[str]:
    """Yield a line for each region; ``seconds``: of each step, where a profile knows them."""
    for region in regions_of(plan.steps):
        took = None if seconds is None else _sum(plan.steps, seconds, region)
        yield _line(program, region, took)


def _line(program: Program, region: RegionSteps, seconds: float | None) -> str:
    held = region.plan.region
    phases = len(region.plan.phases)
    weights = sum(
        program.spans[span].length
        for span in range(region.span or 0, (region.span or 0) + region.n_spans)
        if region.span is not None
    )
    whole = _inner_bytes(program, region)
    where = "in the arena" if held.in_arena else "at once"
    instead = f" instead of {brief(whole)} of whole values" if whole else ""
    cost = "" if seconds is None else f", {1e3 * seconds:.1f} ms"
    return (
        f"on {region_words(program, held)} at a time in "
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
        case TileCut(columns=columns):
            return f"tiles, {layers}: {size} of {columns} {_plural('column', columns)}"
        case ChannelCut(channels=channels):
            item = bottleneck_of(program, region.pieces)
            few = f", {size}" if rows < item.operators[-1].height else ""
            return f"groups of channels, {layers}: {channels} of {item.channels}{few}"


def _inner_bytes(program: Program, region: RegionSteps) -> int:
    """Return the bytes of the values that exist as rows, or as groups of channels, only."""
    if isinstance(region.plan.region.cut, ChannelCut):
        operators = bottleneck_of(program, region.plan.region.pieces).operators
        return sum(4 * math.prod(item.shape) for item in operators if item.kind == "each")
    made = {region.network.operators[number].output for number in region.plan.operators}
    inner = {program.row_values[number].value for number in made - region.plan.written}
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
