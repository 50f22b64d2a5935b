"""``layerstream run``: answer one request on the command line."""

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from cli.arguments import (
    ArchitectureName,
    Arena,
    DeviceName,
    Json,
    MemoryKind,
    PackPath,
    PrecisionName,
    Recompile,
    Ring,
    Threads,
    Verify,
    Weights,
    architecture,
    open_named,
    size,
    weight_bytes,
)
from cli.printing.output import say
from cli.printing.steps import planning
from cli.running.answers import (
    BOXES,
    LABELS,
    Found,
    Result,
    Wish,
    found_in,
    report,
)
from cli.running.files import open_picture, read_inputs
from cli.running.run_files import RunFiles
from models.detection.boxes import BoxLimits
from models.packs.pack import open_pack
from models.packs.shapes import PackShapes, ShapeMatch, UnknownShapeError
from models.sizes import format_least, format_size
from pipeline.budget.budget import Budget
from pipeline.budget.candidates import Candidate, needed_by_all, share_served
from pipeline.budget.errors import RefusedError
from pipeline.budget.request_needs import largest_request, short_infer_bytes
from pipeline.energy import EnergyMeter, find_meter
from pipeline.execution.engine import Engine
from pipeline.execution.errors import InputError
from pipeline.execution.given import Arrays, Tensors
from pipeline.execution.opened import opened as opened_engine
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import EnginePlanResult, Wanted, of_one_engine
from pipeline.planning.plan import Plan
from pipeline.profiles.profile_file import prepared

if TYPE_CHECKING:
    from cli.running.repeats import Repeats


def run(
    context: typer.Context,
    pack: PackPath,
    image: Annotated[Path | None, typer.Option(help="An image for the model.")] = None,
    input_: Annotated[
        Path | None, typer.Option("--input", help="A .npy tensor, or .npz with one a name.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Write outputs: .npy (one) or .npz.")
    ] = None,
    architecture_name: ArchitectureName = "auto",
    ring: Ring = None,
    weights: Weights = None,
    arena: Arena = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="All memory, the request included: 3MB, 64MiB."),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="NUMBER",
            help=f"How many labels or boxes to print. Default: {LABELS} labels, {BOXES} boxes.",
        ),
    ] = None,
    repeat: Annotated[
        int,
        typer.Option(
            min=0, metavar="NUMBER", help="Answer so often again, warm: median and spread."
        ),
    ] = 0,
    draw: Annotated[
        Path | None,
        typer.Option(help="Write the image with boxes, mask or depth: OUT.png, .jpg..."),
    ] = None,
    mask: Annotated[
        Path | None, typer.Option(help="Write the mask, whose pixels are classes: OUT.png.")
    ] = None,
    score_threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, metavar="0...1", help="Lowest score of a box."),
    ] = None,
    iou_threshold: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, metavar="0...1", help="Largest overlap of two boxes of a class."
        ),
    ] = None,
    verify: Verify = "first",
    device_name: DeviceName = "cpu",
    recompile: Recompile = False,
    memory_kind: MemoryKind = None,
    precision: PrecisionName = "fp32",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Answer one request, an image or tensors. With --repeat it is answered again warm, and timed."""
    device = open_named(context, device_name, threads, memory_kind, precision)
    opened = open_pack(pack, device.target, recompile)
    count = sum(value is not None for value in (image, input_))
    if not min(len(opened.manifest.required_inputs), 1) <= count <= 1:
        raise typer.BadParameter("give either --image or --input")
    if sum(value is not None for value in (ring, weights, budget)) > 1:
        raise typer.BadParameter("give one of --ring, --weights and --budget")
    limits = BoxLimits(_fraction(score_threshold), _fraction(iou_threshold))
    written = RunFiles(output, draw, mask)
    written.check(opened, image)
    picture = None if image is None else open_picture(image)
    shapes, tensors = opened.shapes, read_inputs(opened, picture, input_)
    match = _matching(shapes, tensors)
    inputs = shapes.padded(match, tensors)
    opened = replace((opened, *opened.others)[match.shape_index], others=())
    pixels = None if picture is None else picture.size
    if draw is None:
        picture = None  # what is needed of it, its tensor holds
    chosen = architecture(architecture_name)
    total = size(budget, "--budget")
    wanted = Wanted(
        ring_bytes=size(ring, "--ring"),
        weight_bytes=weight_bytes(weights, opened.manifest),
        arena_bytes=size(arena, "--arena"),
    )
    program, profile = prepared(opened, device)
    wish = Wish(top_k or LABELS, limits)
    request_bytes = _held_bytes(inputs)
    with planning():  # seconds, where a profile is new
        candidate = Candidate(program, device.adapt(chosen), wanted, profile)
        fitted = _fitted(candidate, total, has_tensors=image is None, at_once=repeat == 0)
        candidate.known.save()
    plan = fitted.plan

    def taken(outputs: Arrays) -> Found:
        if not repeat:
            inputs.clear()
        outputs = shapes.cut(match, outputs)
        written.write_tensors(outputs)
        return found_in(opened, pixels, wish, outputs)

    meter = find_meter()
    with opened_engine(program, plan, device, verify=verify == "always") as engine:
        with meter.measure() as energy:
            answer, statistics = engine.answer(inputs, taken)
        repeats = _repeated(engine, plan, inputs, repeat, meter)
    written.write(answer, picture)
    with_request = {"request_bytes": request_bytes, "total_bytes": plan.total_bytes + request_bytes}
    document = {**plan.as_dict(), **with_request}
    result = Result(opened, document, fitted.heuristic, answer, statistics, energy, repeats)
    report(result, top_k or BOXES, as_json)
    if not as_json:
        for path in written.paths:
            say(f"{path}: written")


def _matching(shapes: PackShapes, inputs: Tensors) -> ShapeMatch:
    """Return the shape of ``inputs``.

    Raises:
        InputError: nobody compiled it.
    """
    try:
        return shapes.find({name: tensor.shape for name, tensor in inputs.items()})
    except UnknownShapeError as exc:
        raise InputError(str(exc)) from exc


def _fitted(
    candidate: Candidate, total: int | None, *, has_tensors: bool, at_once: bool
) -> EnginePlanResult:
    """Return the plan of what is wanted, within a budget of ``total`` bytes where that is tensors.

    A budget is that of ``plan`` and of a service: it includes what a service reserves for requests, though
    this one mostly takes less, so that one number is the least everywhere. ``has_tensors``: the
    request is not a photograph. ``at_once``: it is the only one, and the search for a better plan would
    take longer than the plan saves.

    Raises:
        PlanError, RefusedError: there is none, or the request would have no room in a service.
    """
    if total is None:
        return fit(*candidate.question)
    budget = Budget(total)
    allocation = share_served([candidate], budget, None, "auto", at_once=at_once)
    needed = short_infer_bytes(candidate.program.pack.manifest)
    if has_tensors and needed > largest_request(budget.request_bytes):
        raise RefusedError(
            f"{candidate.program.name}: a request with tensors takes {format_least(needed)}, more than all "
            f"requests have in a budget of {format_size(total)}; one of "
            f"{format_least(needed_by_all([candidate], 'auto'))} is enough"
        )
    return of_one_engine(allocation.plans()[0])


def _repeated(
    engine: Engine, plan: Plan, inputs: Tensors, runs: int, meter: EnergyMeter
) -> "Repeats | None":
    if not runs:  # a first answer does not wait for what only measures
        return None
    from cli.running.repeats import repeated

    return repeated(engine, plan, inputs, runs, meter)


def _held_bytes(inputs: Tensors) -> int:
    """Return what the tensors of the request take in addition to the plan.

    Outputs are written to their file from the memory of the plan, so any budget in which a service answers
    tensors is enough for one.
    """
    return sum(
        tensor.nbytes if isinstance(tensor, np.ndarray) else tensor.n_bytes
        for tensor in inputs.values()
    )


def _fraction(value: float | None) -> float | None:
    if value is not None and math.isnan(value):  # which no range of an option excludes
        raise typer.BadParameter("nan is not a threshold")
    return value
