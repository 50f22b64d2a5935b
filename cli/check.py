"""``layerstream check``: whether a network is supported, what it needs, and how fast it is here.

The network is compiled in a process of its own; meanwhile this one imports what measures (measured.py).
"""

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import (
    Batch,
    InputNames,
    Json,
    Shapes,
    WithoutOutputs,
    open_named,
    repeated,
    shapes_of,
)
from cli.compiling import CompileRequest, compile_request
from cli.model_sources import sources_of
from cli.printing.output import warn
from cli.printing.steps import steps
from cli.source_records import Source
from models.forks import in_fork
from models.packs.names import CPU
from models.progress import Progress
from models.runtime.heap import is_claimed, kept_imports
from pipeline.execution.errors import InputError


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
    keep_input: InputNames = None,
    without_output: WithoutOutputs = None,
    as_json: Json = False,
) -> None:
    """Say whether a network is supported, and what it needs.

    That is how little memory, and how long it takes here in three budgets, measured on drawn inputs. It is
    compiled without comparing its answers, and nothing is kept.
    """
    words = repeated(shape=shape, keep_input=keep_input, without_output=without_output)
    (source, *others) = sources_of(files, {}, words)
    if others:
        raise InputError(f"{others[0].files[0]}: one network at a time")
    with tempfile.TemporaryDirectory(prefix="layerstream-check-") as name:
        folder = source.files[0]
        if not folder.is_dir():
            options = {
                "batch": batch,
                "shapes": shapes_of(shape),
                "keep_inputs": tuple(keep_input or ()),
                "without_outputs": tuple(without_output or ()),
            }
            folder = _compiled(source, Path(name), options)
        from cli.measured import print_measured

        print_measured(folder, open_named(context, "cpu"), (*files, *words), as_json)


def _compiled(source: Source, work: Path, options: Mapping[str, object]) -> Path:
    """Make the pack of ``source`` in the folder ``work``; return its folder."""
    write = partial(_write, source, work, options)
    with steps(f"reading {source.files[0].name}") as progress:
        if not is_claimed():
            return write(progress, warn)
        return in_fork(write, progress, warn, meanwhile=_import_measured)


def _import_measured() -> None:
    with kept_imports():
        import_module("cli.measured")


def _write(
    source: Source,
    work: Path,
    options: Mapping[str, object],
    progress: Progress,
    warn: Callable[[str], None],
) -> Path:
    file = source.files[0]
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
        options=options,
    )
    return compile_request(request, progress, warn, lambda change: None)
