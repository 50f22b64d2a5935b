"""``layerstream compile``: from an ONNX file to a pack.

What the compiler, the check and the summary need is imported by each: they are not in memory at once.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

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
from cli.compiling import CompileRequest, compile_request
from cli.model_sources import RECIPES, recipes_beside
from cli.printing.output import fail, tell
from cli.printing.steps import steps
from cli.process import NO_MEMORY
from models.packs.names import CPU, STORES, Store, loses_bits

if TYPE_CHECKING:
    from models.compiler.passes.explain import PassChange

# A CPU has no kernels for these: what they save is reading.
_STORED_AS: Mapping[str, Store] = {"half": "fp16", "mixed": "int8"}


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
    embedding: Annotated[
        Path | None, _recipe("embedding", "TOML file: which output is a vector, and how.")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="tokenizer.json of Hugging Face: texts. Default: the one next to F.onnx."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="JSON file of Hugging Face or timm: labels. Default: config.json next to F.onnx."
        ),
    ] = None,
    image_config: Annotated[
        Path | None,
        typer.Option(
            help="JSON file of Hugging Face or OpenCLIP: pictures. Default: theirs next to F.onnx."
        ),
    ] = None,
    scores: Annotated[
        str | None, typer.Option(help="What the output holds: probabilities or logits.")
    ] = None,
    batch: Batch = None,
    shape: Shapes = None,
    keep_input: InputNames = None,
    without_output: WithoutOutputs = None,
    same_weights: Annotated[
        bool,
        typer.Option("--same-weights", help="Refuse shapes that have weights of their own."),
    ] = False,
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
    """Compile an ONNX file to a pack. It is for this machine, or for a GPU."""
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
    measures = not no_check and loses_bits(store)
    if calibrate is not None and precision != "int8" and not measures:
        raise typer.BadParameter(
            "--calibrate DIR goes with --precision int8, or with --store fp16, bf16 or int8 and its check"
        )
    given = {
        "labels": labels,
        "preprocess": preprocess,
        "detection": detection,
        "segmentation": segmentation,
        "embedding": embedding,
        "tokenizer": tokenizer,
        "config": config,
        "image_config": image_config,
    }
    request = CompileRequest(
        source=source,
        output=output,
        version=version,
        force=force,
        target=target,
        store=store,
        quantised=precision == "int8",
        calibrate=calibrate,
        check=None if no_check else check,
        recipes=_recipes(source, given),
        options={
            "batch": batch,
            "shapes": shapes_of(shape),
            "keep_inputs": tuple(keep_input or ()),
            "without_outputs": tuple(without_output or ()),
            "chunk_bytes": size(chunk, "--chunk"),
            "scores": scores,
            "without": tuple(without or ()),
            "same_weights": same_weights,
        },
        explain=explain,
        verify=verify,
        find_fault=find_fault,
        print_passes=print_passes,
    )
    warnings: list[str] = []
    changes: list[PassChange] = []
    with steps(f"compiling {source.name}") as progress:
        try:
            folder = compile_request(request, progress, warnings.append, changes.append)
        except MemoryError as exc:
            fail(str(exc) or "out of memory", NO_MEMORY)
    from cli.printing.compiled import print_compiled  # what plans a pack, now that there is one

    cpu = open_named(context, "cpu")
    print_compiled(folder, source, cpu, request.options["chunk_bytes"], warnings, changes, as_json)


def _recipes(source: Path, given: Mapping[str, Path | None]) -> dict[str, Path]:
    """Return the files of recipes of ``source``: those ``given``, else those that lie beside it."""
    files = recipes_beside(source)
    for name, file in given.items():
        if file is not None:
            files[name] = file
        elif name in files:
            option = name.replace("_", "-")
            tell(f"{source.name}: --{option} {files[name]}, which lies beside it")
    return files
