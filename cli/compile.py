"""``layerstream compile``: from an ONNX file to a pack."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from cli import NO_MEMORY
from cli.arguments import (
    Batch,
    Check,
    InputNames,
    Json,
    Shapes,
    WithoutOutputs,
    open_named,
    shapes_of,
    size,
)
from cli.model_sources import RECIPES, recipes_beside
from cli.printing.changes import print_changes
from cli.printing.output import fail, print_json, say, suggest, tell, warn
from cli.printing.sentences import counted, less_for_pictures, serving, stored_as, typed
from cli.printing.steps import steps
from models.datasets.samples import read_folder
from models.detection.recipe import read_detection
from models.images.preprocess import read_labels, read_preprocess
from models.network.names import Op
from models.packs.manifest import Manifest
from models.packs.pack import Pack, read_pack
from models.packs.records.spans import Store, loses_bits
from models.packs.target import CPU, named_target
from models.runtime.heap import kept_imports
from models.segmentation import read_segmentation
from models.sizes import format_least, format_size
from pipeline.checking.checker import checker, fault_finder
from pipeline.devices.find import device_measure
from server.memory.process_memory import spare_bytes

if TYPE_CHECKING:
    from models.compiler.passes.explain import Explaining
    from models.compiler.passes.run import Observer

# A CPU has no kernels for these: what they save is reading.
_STORED_AS = {"half": "fp16", "mixed": "int8"}
#: What reads the files of recipes.
_READERS: Mapping[str, Callable[[Path], Any]] = {
    "labels": read_labels,
    "preprocess": read_preprocess,
    "detection": read_detection,
    "segmentation": read_segmentation,
}
# Pictures of --calibrate on which is measured what --store costs.
_MEASURED = 8
#: What --store takes.
STORES: tuple[Store, ...] = get_args(Store)


def _recipe(name: str, what: str) -> Any:
    return typer.Option(help=f"{what} Default: F{RECIPES[name]} beside F.onnx.")


def compile_(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(help="The ONNX file.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="REPOSITORY/NAME")],
    labels: Annotated[Path | None, _recipe("labels", "Text file, one label a line.")] = None,
    preprocess: Annotated[
        Path | None, _recipe("preprocess", "TOML file: size, color, mean...")
    ] = None,
    detection: Annotated[
        Path | None, _recipe("detection", "TOML file: a detector's heads, anchors, classes...")
    ] = None,
    segmentation: Annotated[
        Path | None, _recipe("segmentation", "TOML file: which output is a mask, and how.")
    ] = None,
    scores: Annotated[
        str | None, typer.Option(help="What the output holds: probabilities or logits.")
    ] = None,
    batch: Batch = None,
    shape: Shapes = None,
    keep_input: InputNames = None,
    without_output: WithoutOutputs = None,
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
        str,
        typer.Option(
            help="cpu (of this machine), x86_64-avx2 or x86_64-avx512, aarch64-generic (any CPU, in plain "
            "layouts), or cuda-sm72 (compute capability 7.2)."
        ),
    ] = CPU,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(STORES),
            help="How weights lie in the file; they are expanded to float32 beside reads. Default: fp32.",
        ),
    ] = None,
    version: Annotated[int, typer.Option(min=1, help="Version folder to write.")] = 1,
    force: Annotated[
        bool, typer.Option("--force", help="Replace that version if it exists.")
    ] = False,
    check: Check = "full",
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Make a pack without comparing it.")
    ] = False,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="PASS", help="Leave out a pass that is not required, repeatable."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="List what each pass changes.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the rules of networks after each pass.")
    ] = False,
    find_fault: Annotated[
        bool,
        typer.Option(
            "--find-fault",
            help="Compute the network after each pass on drawn inputs; name the first that makes it wrong.",
        ),
    ] = False,
    print_passes: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write the network after each pass that changes it as text."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compile an ONNX file to a pack. It is for this machine, or for a GPU.

    Example: layerstream compile yolov8n.onnx -o repository/yolov8n
    """
    with kept_imports():
        from models.compiler import CompileOptions, compile_onnx  # onnx: not for the service
        from models.compiler.passes.explain import Explaining
        from models.graphs.onnx_reader import source_files

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
    if calibrate is not None and precision != "int8" and (no_check or not loses_bits(store)):
        raise typer.BadParameter(
            "--calibrate DIR goes with --precision int8, or with --store fp16, bf16 or int8 and its check"
        )
    pictures = read_folder(calibrate) if calibrate else None
    if pictures:
        pictures.check_pictures()
    given = {
        "labels": labels,
        "preprocess": preprocess,
        "detection": detection,
        "segmentation": segmentation,
    }
    compiled_for = named_target(target)
    warnings: list[str] = []
    changes = Explaining() if explain else None
    options = CompileOptions(
        version=version,
        batch=batch,
        shapes=shapes_of(shape),
        keep_inputs=tuple(keep_input or ()),
        without_outputs=tuple(without_output or ()),
        chunk_bytes=size(chunk, "--chunk"),
        scores=scores,  # type: ignore[arg-type]
        force=force,
        target=compiled_for,
        calibrate=pictures.pictures if pictures and precision == "int8" else None,
        measure=device_measure(compiled_for),
        warn=warnings.append,
        store=store,
        without=tuple(without or ()),
        observers=tuple(_observers(changes, verify, find_fault, print_passes)),
        **_recipes(source, given),
    )
    with steps(f"compiling {source.name}") as progress:
        measured = partial(pictures.pictures, _MEASURED) if pictures else None
        judge = checker(
            source,
            compiled_for,
            warnings.append,
            progress,
            depth=check,
            pictures=measured,
            free=spare_bytes,
        )
        accept = None if no_check else judge
        try:
            folder = compile_onnx(source, output, replace(options, accept=accept), progress)
        except MemoryError as exc:
            fail(str(exc) or "out of memory", NO_MEMORY)
    from cli.printing.summary import summary_of  # what plans a pack, now that there is one

    pack = read_pack(folder)
    summary = summary_of(pack, open_named(context, "cpu"))
    warnings += _whole_layers(pack.manifest, options.chunk_bytes)
    for warning in warnings:
        warn(warning)
    if as_json:
        files = list(map(str, source_files(source)))
        passes = {"passes": list(map(asdict, changes.changes))} if changes else {}
        print_json({**summary, "source_files": files, "warnings": warnings, **passes})
    else:
        print_changes(changes.changes if changes else ())
        _print_made(pack, summary)


def _observers(
    changes: "Explaining | None", verify: bool, find_fault: bool, texts: Path | None
) -> "Iterator[Observer]":
    """Yield what looks on while passes run."""
    from models.compiler.passes.verify import Verifying  # onnx: not for the service
    from models.compiler.passes.view import Printing

    if changes is not None:
        yield changes
    if verify:
        yield Verifying()
    if find_fault:
        yield fault_finder()
    if texts is not None:
        yield Printing(texts)


def _recipes(source: Path, given: Mapping[str, Path | None]) -> dict[str, Any]:
    """Return the recipes of ``source`` for the compiler: those ``given``, else those that lie beside it."""
    files = recipes_beside(source)
    for name, file in given.items():
        if file is not None:
            files[name] = file
        elif name in files:
            tell(f"{source.name}: --{name} {files[name]}, which lies beside it")
    return {name: _READERS[name](file) for name, file in files.items()}


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
    shared = " that layers share," if summary["shared_bytes"] else ""
    if not stored:
        return shared
    return f"{shared or ','} {format_size(summary['file_bytes'])} in the file{stored},"


def _whole_layers(manifest: Manifest, chunk_bytes: int | None) -> list[str]:
    """Return a warning where layers stay whole because of their batch."""
    from models.compiler.cutting.chunks import default_chunk_bytes  # onnx: not for the service

    batches = {port.shape[0] for port in manifest.required_inputs if len(port.shape) > 1}
    finest = chunk_bytes or default_chunk_bytes(manifest.weight_bytes)
    largest = manifest.largest_chunk_bytes
    if len(batches) != 1 or largest <= finest or not _has_batch(manifest, batch := batches.pop()):
        return []
    return [
        f"with a batch of {batch} layers are not cut: the smallest ring holds the largest of them, "
        f"{format_least(largest)}, where chunks of a batch of 1 take about {format_least(finest)}"
    ]


def _has_batch(manifest: Manifest, batch: int) -> bool:
    """Return whether the largest chunk is a layer that would be cut, if it were not for its ``batch``."""
    from models.network.catalogue import traits_of

    uncut = [layer for layer in manifest.layers if layer.end_piece == layer.first_piece + 1]
    largest = max(uncut, key=lambda layer: layer.weight_bytes, default=None)
    if largest is None or batch == 1:
        return False
    traits = traits_of(largest.operator.partition("+")[0])
    output = manifest.pieces[largest.first_piece].outputs[0]
    is_cut = traits.computes(Op.Conv) or traits.computes(Op.Gemm)
    return is_cut and output.shape[:1] == (batch,)
