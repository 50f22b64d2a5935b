"""``layerstream compile``: from an ONNX file to a pack."""

import logging
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from models.datasets.folders import read_folder
from models.detection.recipe import Detection, read_detection
from models.images.preprocess import read_labels, read_preprocess
from models.packs.designed import DesignedMemory
from models.packs.manifest import Manifest
from models.packs.pack import Pack, read_pack
from models.packs.records.ports import Port
from models.packs.records.spans import Store, loses_bits
from models.packs.target import CPU, named_target
from pipeline.checking.accepting import checker
from pipeline.devices.base import Device
from pipeline.devices.lowered import device_measure
from pipeline.fitting.fit import fit
from pipeline.fitting.frontier import costs_of_least
from pipeline.fitting.wanted import LEAST
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Plan
from pipeline.profiles.found_plans_file import plans_of
from pipeline.profiles.profile import ProfileError
from pipeline.program.choice import choose_pieces, largest_unit_bytes, scratch_bytes
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.program.same_spans import shared_bytes
from pipeline.program.sessions import session_bytes
from pipeline.schedule.architectures import ARCHITECTURES
from server.cli.arguments.options import Json, open_named, size
from server.cli.printing.output import print_json, say, suggest, warn
from server.cli.printing.sentences import counted, less_for_pictures, serving, stored_as, typed
from server.cli.printing.steps import steps
from server.memory.request_needs import Need, smallest_budgets
from server.repository.planning.pack_profiles import find_profile
from server.settings.sizes import format_least, format_size, parse_shapes

# A CPU has no kernels for these: what they save is reading.
_STORED_AS = {"half": "fp16", "mixed": "int8"}
# Pictures of --calibrate on which is measured what --store costs.
_MEASURED = 8
# Of the smallest budget, what is worth a line of its own: a quarter.
_LARGE = 4
#: What --store takes.
STORES: tuple[Store, ...] = get_args(Store)


def _shapes(texts: list[str]) -> dict[str, tuple[int, ...]]:
    try:
        return parse_shapes(texts)
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint="--shape") from exc


def compile_(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(help="The ONNX file.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="REPOSITORY/NAME")],
    labels: Annotated[Path | None, typer.Option(help="Text file, one label a line.")] = None,
    preprocess: Annotated[Path | None, typer.Option(help="TOML file: size, color, mean...")] = None,
    detection: Annotated[
        Path | None, typer.Option(help="TOML file: a detector's heads, anchors, classes...")
    ] = None,
    scores: Annotated[
        str | None, typer.Option(help="What the output holds: probabilities or logits.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="What an unknown batch becomes; default 1.")
    ] = None,
    shape: Annotated[list[str] | None, typer.Option(help="NAME=1,3,224,224, repeatable.")] = None,
    keep_input: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="An input with a value that requests may replace, though it looks like a weight.",
        ),
    ] = None,
    chunk: Annotated[str | None, typer.Option(help="Finest chunk of a layer, e.g. 256KiB.")] = None,
    precision: Annotated[
        Literal["none", "half", "mixed", "int8"],
        typer.Option(
            help="half, mixed: weights of 16-bit floats or 8-bit integers, computed as float32, as --store "
            "fp16 and int8. int8: computed in 8-bit integers, calibrated on pictures (--calibrate)."
        ),
    ] = "none",
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Pictures like those to come, of any size. --precision int8: a hundred do; "
            "--store fp16, bf16, int8: what it costs is measured on eight of them.",
        ),
    ] = None,
    target: Annotated[
        str, typer.Option(help="cpu (of this machine), or cuda-sm72 (compute capability 7.2).")
    ] = CPU,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(STORES),
            help="How weights lie in the file; they are expanded to float32 beside reads. Default: fp32.",
        ),
    ] = None,
    version: Annotated[int, typer.Option(min=1, help="Version folder to write.")] = 1,
    force: Annotated[bool, typer.Option(help="Replace that version if it exists.")] = False,
    check: Annotated[
        bool, typer.Option(help="Run the pack once and compare it with ONNX Runtime on the source.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Compile an ONNX file to a pack for this machine, or for a GPU."""
    from models.compiler import CompileOptions, compile_onnx  # onnx: not for the service

    if scores not in (None, "probabilities", "logits"):
        raise typer.BadParameter("probabilities or logits", param_hint="--scores")
    if precision in _STORED_AS:
        if store is not None:
            raise typer.BadParameter(
                f"--precision {precision} is --store {_STORED_AS[precision]}: leave one of them out"
            )
        store = _STORED_AS[precision]
    store = store or "fp32"
    if store not in STORES:
        raise typer.BadParameter(f"{store!r} is none of {', '.join(STORES)}", param_hint="--store")
    if precision == "int8" and calibrate is None:
        raise typer.BadParameter("--precision int8 needs --calibrate DIR")
    if calibrate is not None and precision != "int8" and not (loses_bits(store) and check):
        raise typer.BadParameter(
            "--calibrate DIR goes with --precision int8, or with --store fp16, bf16 or int8 and its check"
        )
    pictures = read_folder(calibrate) if calibrate else None
    if pictures:
        pictures.check_pictures()
    compiled_for = named_target(target)
    warnings: list[str] = []
    options = CompileOptions(
        version=version,
        batch=batch,
        shapes=_shapes(shape or []),
        keep_inputs=tuple(keep_input or ()),
        chunk_bytes=size(chunk, "--chunk"),
        labels=read_labels(labels) if labels else (),
        preprocess=read_preprocess(preprocess) if preprocess else None,
        detection=read_detection(detection) if detection else None,
        scores=scores,  # type: ignore[arg-type]
        force=force,
        target=compiled_for,
        calibrate=pictures.pictures if pictures and precision == "int8" else None,
        measure=device_measure(compiled_for),
        warn=warnings.append,
        store=store,
    )
    with steps(f"compiling {source.name}") as progress:
        measured = partial(pictures.pictures, _MEASURED) if pictures else None
        judge = checker(source, compiled_for, warnings.append, progress, measured)
        accept = judge if check else None
        folder = compile_onnx(source, output, replace(options, accept=accept), progress)
    pack = read_pack(folder)
    summary = summary_of(pack, open_named(context, "cpu"))
    warnings += _whole_layers(pack.manifest, options.chunk_bytes)
    for warning in warnings:
        warn(warning)
    if as_json:
        print_json({**summary, "warnings": warnings})
    else:
        _print_made(pack, summary)


def _print_made(pack: Pack, summary: dict[str, Any]) -> None:
    least = summary["smallest_budget_bytes"]
    say(
        f"{pack.folder}: {format_size(summary['weight_bytes'])} of weights{_stored(summary)} in "
        f"{counted(summary['spans'], 'span')}, {counted(summary['pieces'], 'piece')}; "
        f"serves from a budget of {typed(least)} up{less_for_pictures(summary)}"
    )
    suggest("To serve it", serving(pack, least))


def _stored(summary: dict[str, Any]) -> str:
    stored = f" {stored_as(summary['store'])}" if summary["expands"] else ""
    shared = ""
    if summary["file_bytes"] < summary["weight_bytes"] and summary["shared_bytes"]:
        shared = f", as layers share {format_size(summary['shared_bytes'])}"
    if not stored and not shared:
        return ""
    return f", {format_size(summary['file_bytes'])} in the file{stored}{shared},"


def _whole_layers(manifest: Manifest, chunk_bytes: int | None) -> list[str]:
    """Return a warning where layers stay whole because of their batch."""
    from models.compiler.cutting.chunks import default_chunk_bytes  # onnx: not for the service

    batches = [port.shape[0] for port in manifest.required_inputs if len(port.shape) > 1]
    finest = chunk_bytes or default_chunk_bytes(manifest.weight_bytes)
    largest = manifest.largest_chunk_bytes
    if max(batches, default=1) == 1 or largest <= finest:
        return []
    return [
        f"with a batch of {max(batches)} layers are not cut: the smallest ring holds the largest of them, "
        f"{format_least(largest)}, where chunks of a batch of 1 take about {format_least(finest)}"
    ]


def summary_of(pack: Pack, cpu: Device) -> dict[str, Any]:
    """Return what users want to know of a pack: sizes in bytes, counts, ports.

    What kernels take is that of ``cpu``, as ``plan`` and ``serve`` have it; of a GPU's pack it is as
    compiled, since only its device could say more.
    """
    manifest = pack.manifest
    program = Program.as_compiled(pack) if manifest.target.capability else prepare(pack, cpu)
    known = plans_of(pack)
    least = fit(program, ARCHITECTURES["auto"], LEAST, None, known).plan
    known.save()
    needs = [Need.of(manifest)]
    budgets = smallest_budgets(least.total_bytes, needs)
    return {
        "model": pack.name,
        "version": pack.version,
        "folder": str(pack.folder),
        "target": manifest.target.model_dump(),
        "layers": len(manifest.layers),
        "parameters": manifest.parameters,
        "weight_bytes": manifest.weight_bytes,
        "store": manifest.store,
        "expands": manifest.expands,
        "file_bytes": manifest.files["weights.bin"].n_bytes,
        "expanded_bytes": sum(span.length for span in manifest.spans),
        "shared_bytes": shared_bytes(program),
        "largest_layer_bytes": manifest.largest_layer_bytes,
        "largest_chunk_bytes": manifest.largest_chunk_bytes,
        "largest_joined_bytes": largest_unit_bytes(program, choose_pieces(program, None)),
        "spans": len(manifest.spans),
        "pieces": len(manifest.pieces),
        "sessions": len(manifest.graphs),
        "smallest_budget_bytes": budgets.full_bytes,
        "pictures_budget_bytes": budgets.bare_bytes,
        "costs": [] if manifest.target.capability else _costs(program, least, cpu, needs),
        "arena_bytes": make_plan(program, ARCHITECTURES["2s"]).arena_bytes,
        "scratch_bytes": scratch_bytes(program.pieces),
        "unrolled": _unrolled(program, least),
        "session_bytes": session_bytes(program, program.pieces),
        "inputs": [
            {**_port(port), "optional": port.default is not None} for port in manifest.inputs
        ],
        "outputs": [_port(port) for port in manifest.outputs],
        "preprocess": manifest.preprocess and manifest.preprocess.model_dump(),
        "labels": _label_count(manifest),
        "detection": manifest.detection and _detector(manifest.detection),
        "source_sizes": manifest.source_sizes and manifest.source_sizes.model_dump(),
        "designed": manifest.designed and _designed(manifest.designed),
        "resident_pieces": [asdict(piece) for piece in manifest.resident_pieces],
        "bottlenecks": [
            {"channels": item.channels, "groups": list(item.sizes)} for item in manifest.bottlenecks
        ],
    }


def _unrolled(program: Program, least: Plan) -> dict[str, Any] | None:
    """Return the layer that unrolls most in the ``least`` plan, where that is a large part of it."""
    found = (
        {"layer": layer.name, "operator": layer.operator, "bytes": piece.unrolled.whole_bytes}
        for layer in program.layers
        for piece in program.pieces[layer.first_piece : layer.end_piece]
        if piece.unrolled is not None
        and piece.scratch_bytes == least.scratch_bytes
        and piece.unrolled.whole_bytes * _LARGE >= least.total_bytes
    )
    return next(found, None)


def _costs(program: Program, least: Plan, cpu: Device, needs: list[Need]) -> list[dict[str, Any]]:
    """Return how many times as long as with all memory requests take: in the smallest budget, in more."""
    profile = find_profile(program.pack, cpu, logging.DEBUG)
    try:
        found = costs_of_least(program, least, profile=profile)
    except ProfileError:  # it was measured before there were rows, or on other kernels
        found = costs_of_least(program, least)
    return [
        {
            "budget_bytes": smallest_budgets(cost.total_bytes, needs).full_bytes,
            "times": cost.times,
            "estimated": cost.estimated,
        }
        for cost in found
    ]


def _port(port: Port) -> dict[str, Any]:
    return {"name": port.name, "dtype": port.dtype, "shape": port.shape}


def _label_count(manifest: Manifest) -> int:
    named = manifest.detection or manifest.classification
    return len(named.labels) if named else 0


def _designed(memory: DesignedMemory) -> dict[str, Any]:
    return {**memory.model_dump(), "peak": memory.peak.numbers}


def _detector(detection: Detection) -> dict[str, Any]:
    """Return what a detector is, without its labels and anchors."""
    fields = {"nms", "score_threshold", "iou_threshold"}
    heads = [head.output for head in detection.heads]
    return {"classes": detection.classes, "heads": heads, **detection.model_dump(include=fields)}
