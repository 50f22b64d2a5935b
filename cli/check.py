"""``layerstream check``: whether a network is supported, what it needs, and how fast it is here."""

import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from cli.arguments import Batch, Json, Shapes, open_named, shapes_of
from cli.compiling import CompileRequest, compile_request
from cli.model_sources import sources_of
from cli.printing.output import print_facts, print_json, suggest, warn
from cli.printing.sentences import command, given, in_all, less_for_pictures, tensor, typed
from cli.printing.steps import steps
from cli.printing.summary import summary_of
from cli.source_records import Source
from models.packs.names import CPU
from models.packs.pack import Pack, open_pack, read_pack
from models.packs.target import named_target
from models.sizes import format_size
from pipeline.budget.request_needs import Need, smallest_budgets
from pipeline.devices.base import Device, DeviceError
from pipeline.execution.errors import InputError
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

# A plan runs once, then so often, or as often as this time allows.
_RUNS = 3
_SECONDS = 0.5
# How much slower than with all weights in memory what it advises may be.
_SLOWER = 2.5


def check(
    context: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="F.onnx, CFG WEIGHTS of Darknet, or the folder of a pack.",
            show_default=False,
        ),
    ],
    batch: Batch = None,
    shape: Shapes = None,
    as_json: Json = False,
) -> None:
    """Say whether a network is supported, and what it needs.

    That is how little memory, and how long it takes here in three budgets, measured on drawn inputs. It is
    compiled without comparing its answers, and nothing is kept.
    """
    (source, *others) = sources_of(files, {}, shape or ())
    if others:
        raise InputError(f"{others[0].files[0]}: one network at a time")
    with tempfile.TemporaryDirectory(prefix="layerstream-check-") as name:
        pack = _compiled(source, Path(name), batch, shape)
        device = open_named(context, "cpu")
        summary = summary_of(pack, device)
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
    shapes = [word for text in shape or () for word in ("--shape", text)]
    suggest("To serve it", command("up", *files, *shapes, "--budget", typed(min_bytes)))


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


def _compiled(source: Source, work: Path, batch: int | None, shape: list[str] | None) -> Pack:
    """Return the pack of ``source``; one that has to be made is in the folder ``work``."""
    file = source.files[0]
    if file.is_dir():
        return open_pack(file, named_target(CPU))
    with steps(f"reading {file.name}") as progress:
        if file.suffix == ".cfg":
            from models.darknet.importer import import_network  # onnx: not for the service

            cfg, weights = source.files
            file = work / f"{source.name}.onnx"
            import_network(cfg, weights, file, progress=progress)
        request = CompileRequest(
            source=file,
            output=work / source.name,
            version=1,
            force=False,
            target=CPU,
            store="fp32",
            quantised=False,
            calibrate=None,
            check=None,
            recipes=source.recipes,
            options={"batch": batch, "shapes": shapes_of(shape)},
        )
        return read_pack(compile_request(request, progress, warn, lambda change: None))


def _delays(pack: Pack, device: Device) -> Iterator[dict[str, Any]]:
    """Yield delays that were measured: in the smallest budget, one between, with all weights in memory.

    A plan for which there is no memory now is left out.
    """
    program, profile = prepared(pack, device)
    cached, needs, free = plans_of(pack), [Need.of(pack.manifest)], spare_bytes()
    auto, pre = ARCHITECTURES["auto"], ARCHITECTURES["pre"]
    min_plan = fit(program, auto, LEAST, profile, cached).plan
    full_plan = fit(program, pre, NOTHING, profile, cached).plan
    limit = round(
        math.sqrt(min_plan.total_bytes * max(full_plan.total_bytes, min_plan.total_bytes))
    )
    between = fit(program, auto, Wanted(total_bytes=limit), profile, cached).plan
    for plan in {plan.total_bytes: plan for plan in (min_plan, between, full_plan)}.values():
        if free is None or plan.total_bytes <= free:
            yield {
                "budget_bytes": smallest_budgets(plan.total_bytes, needs).full_bytes,
                "delay_ms": 1e3 * _seconds(program, plan, device),
            }


def _seconds(program: Program, plan: Plan, device: Device) -> float:
    """Return what a pass of ``plan`` takes on drawn inputs, the median of a few."""
    inputs, delays = random_inputs(program), list[float]()
    with opened(program, plan, device) as engine:
        engine.run(inputs)  # touches all memory
        until = time.monotonic() + _SECONDS
        while not delays or (len(delays) < _RUNS and time.monotonic() < until):
            delays.append(engine.run(inputs)[1].delay_seconds)
    return median(delays)


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
        times = f", {row['delay_ms'] / fastest:.2f} x" if row is not rows[-1] and fastest else ""
        yield "takes here", f"{rounded(row['delay_ms'])} ms in {typed(row['budget_bytes'])}{times}"
    if not rows:
        yield "takes here", f"not measured: {reason or 'there is too little memory now'}"


def rounded(figure: float) -> str:
    """Return a figure for people: two digits that count, no decimals from ten on."""
    if figure >= 10:
        return f"{figure:,.0f}"
    return f"{figure:.1f}" if figure >= 1 else f"{figure:.2g}"
