"""``layerstream compile``: from an ONNX file to a pack."""

from pathlib import Path
from typing import Annotated, Any

import typer

from models.choice import choose_pieces, largest_unit_bytes, scratch_bytes, session_bytes
from models.detection.recipe import Detection, read_detection
from models.manifest import Manifest
from models.pack import Pack, read_pack
from models.preprocess import read_labels, read_preprocess
from models.target import CPU, named_target
from pipeline.architectures import ARCHITECTURES
from pipeline.devices.lowered import device_measure
from pipeline.planning.make import make_plan
from pipeline.planning.thumb import smallest_plan
from server.cli.options import Json, size
from server.cli.output import console, errors, print_json
from server.sizes import format_size


def _shapes(texts: list[str]) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for text in texts:
        name, _, dims = text.rpartition("=")
        try:
            shapes[name] = tuple(int(dim) for dim in dims.split(","))
        except ValueError:
            shapes[name] = ()
        if not name or not shapes[name] or min(shapes[name]) < 0:
            raise typer.BadParameter(f"{text!r} is not NAME=1,3,224,224", param_hint="--shape")
    return shapes


def compile_(
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
    batch: Annotated[int, typer.Option(min=1, help="What an unknown batch becomes.")] = 1,
    shape: Annotated[list[str] | None, typer.Option(help="NAME=1,3,224,224, repeatable.")] = None,
    chunk: Annotated[str | None, typer.Option(help="Finest chunk of a layer, e.g. 256KiB.")] = None,
    target: Annotated[
        str, typer.Option(help="cpu (of this machine), or cuda-sm72 (compute capability 7.2).")
    ] = CPU,
    version: Annotated[int, typer.Option(min=1, help="Version folder to write.")] = 1,
    force: Annotated[bool, typer.Option(help="Replace that version if it exists.")] = False,
    as_json: Json = False,
) -> None:
    """Compile an ONNX file to a pack for this machine, or for a GPU."""
    from models.compiler import CompileOptions, compile_onnx  # onnx: not for the service

    if scores not in (None, "probabilities", "logits"):
        raise typer.BadParameter("probabilities or logits", param_hint="--scores")
    compiled_for = named_target(target)
    options = CompileOptions(
        version=version,
        batch=batch,
        shapes=_shapes(shape or []),
        chunk_bytes=size(chunk, "--chunk"),
        labels=read_labels(labels) if labels else (),
        preprocess=read_preprocess(preprocess) if preprocess else None,
        detection=read_detection(detection) if detection else None,
        scores=scores,  # type: ignore[arg-type]
        force=force,
        target=compiled_for,
        measure=device_measure(compiled_for),
    )
    with errors.status(f"compiling {source.name}") as status:
        folder = compile_onnx(
            source, output, options, lambda step: status.update(f"{source.name}: {step}")
        )
    pack = read_pack(folder)
    summary = summary_of(pack)
    if as_json:
        print_json(summary)
    else:
        console.print(
            f"{folder}: {format_size(summary['weight_bytes'])} of weights in "
            f"{len(pack.manifest.spans)} spans, {len(pack.manifest.pieces)} pieces; "
            f"serves from a budget of {format_size(summary['smallest_budget_bytes'])} up",
            highlight=False,
            soft_wrap=True,
        )


def summary_of(pack: Pack) -> dict[str, Any]:
    """Return what users want to know of a pack: sizes in bytes, counts, ports."""
    manifest = pack.manifest
    return {
        "model": pack.name,
        "version": pack.version,
        "folder": str(pack.folder),
        "target": manifest.target.model_dump(),
        "layers": len(manifest.layers),
        "parameters": manifest.parameters,
        "weight_bytes": manifest.weight_bytes,
        "largest_layer_bytes": manifest.largest_layer_bytes,
        "largest_chunk_bytes": manifest.largest_chunk_bytes,
        "largest_joined_bytes": largest_unit_bytes(manifest, choose_pieces(manifest, None)),
        "spans": len(manifest.spans),
        "pieces": len(manifest.pieces),
        "sessions": len(manifest.graphs),
        "smallest_budget_bytes": smallest_plan(manifest, ARCHITECTURES["2s"]).total_bytes,
        "arena_bytes": make_plan(manifest, ARCHITECTURES["2s"]).arena_bytes,
        "scratch_bytes": scratch_bytes(manifest.pieces),
        "session_bytes": session_bytes(manifest, manifest.pieces),
        "inputs": [port.model_dump(exclude={"value"}) for port in manifest.inputs],
        "outputs": [port.model_dump(exclude={"value"}) for port in manifest.outputs],
        "preprocess": manifest.preprocess and manifest.preprocess.model_dump(),
        "labels": _label_count(manifest),
        "detection": manifest.detection and _detector(manifest.detection),
        "source_sizes": manifest.source_sizes and manifest.source_sizes.model_dump(),
        "resident_pieces": [piece.model_dump() for piece in manifest.resident_pieces],
    }


def _label_count(manifest: Manifest) -> int:
    named = manifest.detection or manifest.classification
    return len(named.labels) if named else 0


def _detector(detection: Detection) -> dict[str, Any]:
    """Return what a detector is, without its labels and anchors."""
    fields = {"nms", "score_threshold", "iou_threshold"}
    heads = [head.output for head in detection.heads]
    return {"classes": detection.classes, "heads": heads, **detection.model_dump(include=fields)}
