"""What ``check`` says of a pack: what it needs, and how long it takes here in three budgets."""

from collections.abc import Callable, Iterator, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

from cli.printing.output import print_facts, print_json, suggest
from cli.printing.sentences import command, given, in_all, less_for_pictures, tensor, typed
from cli.printing.summary import summary_of
from models.packs.names import CPU
from models.packs.pack import Pack, open_pack
from models.packs.target import named_target
from models.sizes import format_size
from pipeline.budget.request_needs import Need, smallest_budgets
from pipeline.devices.base import Device, DeviceError
from pipeline.execution.opened import opened
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import LEAST, NOTHING, Wanted
from pipeline.measuring.sweeps import random_inputs
from pipeline.planning.plan import Plan
from pipeline.profiles.found_plans_file import plans_of
from pipeline.profiles.profile_file import prepared
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from server.memory.process_memory import spare_bytes

# Passes of a plan end when two take the same time within a tenth, or when they took so many seconds.
_SAME = 1.1
_SECONDS = 0.5
# How much slower than with all weights in memory what it advises may be.
_SLOWER = 2.5


def print_measured(
    folder: Path, device: Device, typed_words: Sequence[str | Path], as_json: bool
) -> None:
    """Print what the pack in ``folder`` needs, and how long it takes on ``device``.

    ``typed_words``: the network and its options as the user named them, for the command to run next.
    """
    pack = open_pack(folder, named_target(CPU))
    summary = summary_of(pack, device, with_costs=as_json)
    rows, reason = list[dict[str, Any]](), ""
    try:
        rows += _delays(pack, device)
    except DeviceError as exc:
        reason = f"it fails on drawn inputs: {exc}"
    if as_json:
        print_json({**summary, "supported": True, "delays": rows, "not_measured": reason or None})
        return
    print_facts(_facts(pack, summary, rows, reason))
    min_bytes = advised_bytes(summary["smallest_budget_bytes"], rows)
    suggest("To serve it", command("up", *typed_words, "--budget", typed(min_bytes)))


def advised_bytes(min_bytes: int, rows: list[dict[str, Any]]) -> int:
    """Return the least measured budget that takes at most 2.5 times the time of all weights in memory.

    Args:
        min_bytes: the smallest budget, which it is where nothing was measured.
        rows: what ``_delays`` has measured, from the smallest budget on.
    """
    fast = (
        row["budget_bytes"] for row in rows if row["delay_ms"] <= _SLOWER * rows[-1]["delay_ms"]
    )
    return next(fast, min_bytes)


def _delays(pack: Pack, device: Device) -> Iterator[dict[str, Any]]:
    """Yield delays that were measured: in the smallest budget, one between, with all weights in memory.

    A plan for which there is no memory now is left out.
    """
    program, profile = prepared(pack, device)
    cached, needs, free = plans_of(pack), [Need.of(pack.manifest)], spare_bytes()
    auto, pre = ARCHITECTURES["auto"], ARCHITECTURES["pre"]
    min_plan = fit(program, auto, LEAST, profile, cached).plan
    full_plan = fit(program, pre, NOTHING, profile, cached).plan
    limit = round(sqrt(min_plan.total_bytes * max(full_plan.total_bytes, min_plan.total_bytes)))
    between = fit(program, auto, Wanted(total_bytes=limit), profile, cached).plan
    for plan in {plan.total_bytes: plan for plan in (min_plan, between, full_plan)}.values():
        if free is None or plan.total_bytes <= free:
            yield {
                "budget_bytes": smallest_budgets(plan.total_bytes, needs).full_bytes,
                "delay_ms": 1e3 * _seconds(program, plan, device),
            }


def _seconds(program: Program, plan: Plan, device: Device) -> float:
    """Return what a pass of ``plan`` takes on drawn inputs: the shortest of a few.

    The first one touches all memory, so it may take longer than the others.
    """
    inputs = random_inputs(program)
    with opened(program, plan, device) as engine:
        return shortest(lambda: engine.run(inputs)[1].delay_seconds)


def shortest(measure: Callable[[], float]) -> float:
    """Return the shortest of at least two delays; of more, until two agree or they took their time."""
    best = sorted((measure(), measure()))
    total = sum(best)
    while best[1] > _SAME * best[0] and total < _SECONDS:
        delay = measure()
        total += delay
        best = sorted((*best, delay))[:2]
    return best[0]


def _facts(
    pack: Pack, summary: dict[str, Any], rows: list[dict[str, Any]], reason: str
) -> Iterator[tuple[str, str]]:
    manifest = pack.manifest
    weights = format_size(summary["weight_bytes"])
    yield "supported", f"yes: {pack.name}, {weights} of weights in {summary['layers']:,} layers"
    for port in manifest.inputs:
        yield "input", given(port)
    for port in manifest.outputs:
        yield "output", f"{port.name}: {tensor(port)}"
    min_budget = typed(summary["smallest_budget_bytes"])
    yield "budget", f"from {min_budget} up{less_for_pictures(summary)}{in_all(summary)}"
    fastest = rows[-1]["delay_ms"] if rows else 0.0
    for row in rows:
        times = row["delay_ms"] / fastest if row is not rows[-1] and fastest else 0.0
        slower = f", {rounded(times)} x" if times else ""
        yield "takes here", f"{rounded(row['delay_ms'])} ms in {typed(row['budget_bytes'])}{slower}"
    if not rows:
        yield "takes here", f"not measured: {reason or 'there is too little memory now'}"


def rounded(figure: float) -> str:
    """Return a figure for people: two digits that count, no decimals from ten on."""
    if figure >= 10:
        return f"{figure:,.0f}"
    return f"{figure:.1f}" if figure >= 1 else f"{figure:.2g}"
