"""``layerstream simulate``: what each architecture would take, before anything runs."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.arguments import (
    DeviceName,
    Json,
    PackPath,
    Recompile,
    Ring,
    Threads,
    Weights,
    architecture,
    memory_of,
    open_named,
    profiled,
    size,
    weight_bytes,
)
from cli.printing.output import print_json, print_table, write_text
from cli.printing.steps import working
from cli.printing.tables import number, unit_of_rows
from models.packs.pack import open_pack
from models.records import plain
from pipeline.benchmark.account import estimated_pass
from pipeline.execution.perfetto import trace_document
from pipeline.fitting.fit import fit
from pipeline.fitting.predicting import Predictions
from pipeline.fitting.wanted import LEAST, EnginePlanResult, Wanted
from pipeline.profiles.found_plans_file import plans_of
from pipeline.profiles.profile import Profile
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES, Architecture

_USUAL_PART = 0.05
_SIZES = ("weight_bytes", "arena_bytes", "read_bytes")


def simulate(
    context: typer.Context,
    pack: PackPath,
    architectures: Annotated[
        str, typer.Option(help="Names, comma-separated. Default: all.", show_default=False)
    ] = ",".join(ARCHITECTURES),
    ring: Ring = None,
    weights: Weights = None,
    budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="All memory that auto may take: 64MiB.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write the sweeps for Perfetto: F.json.")
    ] = None,
    device_name: DeviceName = "cpu",
    recompile: Recompile = False,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Predict delay, stalls and memory of each architecture. It takes the pack's profile.

    --weights limits auto, by default to 5 % or what it needs; --budget all of its memory, then parts may
    run on rows.
    """
    if weights is not None and budget is not None:
        raise typer.BadParameter("give --weights or --budget")
    named = [architecture(name.strip(), "--architectures") for name in architectures.split(",")]
    device = open_named(context, device_name, threads)
    program, profile = profiled(open_pack(pack, device.target, recompile), device)
    chosen = [device.adapt(item) for item in named]
    ring_bytes = size(ring, "--ring")
    total = size(budget, "--budget")
    limit = weight_bytes(weights, program.pack.manifest)
    if limit is None and total is None:
        limit = _usual_limit(program, device.adapt(ARCHITECTURES["2s"]))
    fitted: dict[str, EnginePlanResult] = {}
    known = plans_of(program.pack)
    with working(f"simulating {program.name}") as line:
        for item in chosen:
            line.show(f"simulating {program.name}: {item.name}")
            wanted = _wanted(item, ring_bytes, limit, total)
            fitted[item.name] = fit(program, item, wanted, profile, known)
    known.save()
    if trace is not None:
        _write_trace(trace, fitted, program, profile)
    rows = [_row(name, each) for name, each in fitted.items()]
    if as_json:
        print_json({"model": program.name, "machine": plain(profile.machine), "rows": rows})
        return
    unit = unit_of_rows(rows, *_SIZES)
    print_table(
        f"{program.name}: estimated, with weights and arena in memory, and what a pass reads",
        (
            "architecture",
            *map(unit.head, ("weights", "arena", "read")),
            *("delay ms", "stall ms", "bound ms"),
        ),
        (
            (
                row["architecture"],
                *(unit.show(row[key]) for key in _SIZES),
                *(number(row[key]) for key in ("delay_ms", "stall_ms", "bound_ms")),
            )
            for row in rows
        ),
    )


def _usual_limit(program: Program, streaming: Architecture) -> int:
    """Return 5 % of the weights, or what streaming needs at least."""
    least = fit(program, streaming, LEAST).plan.weight_bytes
    return max(int(program.weight_bytes * _USUAL_PART), least)


def _wanted(
    item: Architecture, ring_bytes: int | None, limit: int | None, total: int | None
) -> Wanted:
    """Return the wishes for one architecture: limits hold for ``auto`` alone."""
    if item.tuned != "auto":
        # All weights stay in memory: there is no ring whose size could be given.
        return Wanted(ring_bytes=None if item.resident else ring_bytes)
    if total is not None:
        return Wanted(total_bytes=total)
    return Wanted(ring_bytes=ring_bytes) if ring_bytes is not None else Wanted(weight_bytes=limit)


def _write_trace(
    path: Path, fitted: dict[str, EnginePlanResult], program: Program, profile: Profile
) -> None:
    estimates = Predictions.of(program, profile).estimates
    sweeps = {
        name: (each.plan, estimated_pass(each.plan, estimates)) for name, each in fitted.items()
    }
    write_text(path, json.dumps(trace_document(sweeps, program)))


def _row(name: str, fitted: EnginePlanResult) -> dict[str, Any]:
    plan, expected = fitted.plan, fitted.prediction
    assert expected is not None
    return {
        "architecture": name,
        **memory_of(plan),
        "equation_bytes": plan.equation_bytes,
        "read_bytes": plan.read_bytes,
        "delay_ms": expected.delay_ms,
        "stall_ms": expected.stall_ms,
        "bound_ms": expected.bound_ms,
        "reasons": list(fitted.reasons),
        "regions": [asdict(region) for region in plan.choice.regions],
        "curve": [
            {
                "ring_bytes": point.ring_bytes,
                "weight_bytes": point.weight_bytes,
                "delay_ms": point.delay_seconds * 1e3,
            }
            for point in fitted.curve
        ],
    }
