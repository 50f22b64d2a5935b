"""``layerstream simulate``: what each architecture would take, before anything runs."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from models.packs.manifest import Manifest
from models.packs.pack import open_pack
from pipeline.execution.perfetto import trace_document
from pipeline.fitting.predict import Found, Prediction, Wanted, find_plan, predict
from pipeline.fitting.within import check_fits, fit_within
from pipeline.planning.thumb import smallest_plan
from pipeline.profiles.profile import Profile
from pipeline.schedule.architectures import ARCHITECTURES, Architecture
from server.cli.arguments.options import (
    DeviceName,
    Json,
    PackPath,
    Recompile,
    Ring,
    Threads,
    architecture,
    open_named,
    size,
)
from server.cli.arguments.predicted import memory_of, profiled
from server.cli.arguments.weights import Weights, weight_bytes
from server.cli.printing.figures import number, unit_of_rows
from server.cli.printing.output import print_json, print_table
from server.cli.printing.steps import working

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
    """Predict delay, stalls and memory of each architecture from the pack's profile.

    --weights limits auto, by default to 5 % or what it needs; --budget all of its memory, then parts may
    run on rows.
    """
    if weights is not None and budget is not None:
        raise typer.BadParameter("give --weights or --budget")
    named = [architecture(name.strip(), "--architectures") for name in architectures.split(",")]
    device = open_named(context, device_name, threads)
    opened = open_pack(pack, device.target, recompile)
    opened, profile = profiled(opened, device)
    chosen = [device.adapt(item) for item in named]
    ring_bytes = size(ring, "--ring")
    total = size(budget, "--budget")
    limit = weight_bytes(weights, opened.manifest) or _usual_limit(opened.manifest)
    simulated: dict[str, tuple[Found, Prediction]] = {}
    with working(f"simulating {opened.name}") as line:
        for item in chosen:
            line.show(f"simulating {opened.name}: {item.name}")
            found = (
                _on_rows(opened.manifest, item, total, profile)
                if total is not None and item.tuned == "auto"
                else _found(opened.manifest, item, ring_bytes, limit, profile)
            )
            simulated[item.name] = found, predict(found.plan, profile)
    if trace is not None:
        _write_trace(trace, simulated, opened.manifest)
    rows = [_row(name, *found) for name, found in simulated.items()]
    if as_json:
        print_json({"model": opened.name, "machine": profile.machine.model_dump(), "rows": rows})
        return
    unit = unit_of_rows(rows, *_SIZES)
    print_table(
        f"{opened.name}: predicted, with weights and arena in memory, and what a sweep reads",
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


def _usual_limit(manifest: Manifest) -> int:
    least = smallest_plan(manifest, ARCHITECTURES["auto"]).weight_bytes
    return max(int(manifest.weight_bytes * _USUAL_PART), least)


def _on_rows(manifest: Manifest, item: Architecture, total: int, profile: Profile) -> Found:
    """Return the plan within ``total`` bytes of everything.

    Raises:
        PlanError: there is none.
    """
    fitted = fit_within(manifest, item, total, profile=profile)
    check_fits(manifest, fitted.plan, total)
    return Found(fitted.plan, fitted.reasons)


def _found(
    manifest: Manifest,
    item: Architecture,
    ring_bytes: int | None,
    limit: int | None,
    profile: Profile,
) -> Found:
    # All weights stay in memory: there is no ring whose size could be given.
    wanted = Wanted(None if item.resident else ring_bytes, limit if item.tuned == "auto" else None)
    return find_plan(manifest, item, wanted, profile)


def _write_trace(
    path: Path, simulated: dict[str, tuple[Found, Prediction]], manifest: Manifest
) -> None:
    sweeps = {
        name: (found.plan, prediction.simulated.events)
        for name, (found, prediction) in simulated.items()
    }
    path.write_text(json.dumps(trace_document(sweeps, manifest)), encoding="utf-8")


def _row(name: str, found: Found, prediction: Prediction) -> dict[str, Any]:
    plan = found.plan
    return {
        "architecture": name,
        **memory_of(plan),
        "equation_bytes": plan.equation_bytes,
        "read_bytes": plan.read_bytes,
        "delay_ms": prediction.delay_seconds * 1e3,
        "stall_ms": prediction.simulated.stall_seconds * 1e3,
        "bound_ms": prediction.bound_ms,
        "reasons": list(found.reasons),
        "regions": [asdict(region) for region in plan.choice.regions],
        "curve": [
            {
                "ring_bytes": point.ring_bytes,
                "weight_bytes": point.weight_bytes,
                "delay_ms": point.delay_seconds * 1e3,
            }
            for point in found.curve
        ],
    }
