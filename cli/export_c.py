"""``layerstream export-c``: an ONNX file as C with a static arena."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cli.arguments import (
    Batch,
    InputNames,
    Json,
    Shapes,
    WithoutOutputs,
    shapes_of,
    size,
)
from cli.commands import own_version
from cli.model_sources import CONFIGS, recipes_beside
from cli.printing.output import print_facts, print_json, say, suggest, warn
from cli.printing.sentences import tensor
from cli.printing.steps import steps
from models.compiler.for_c import graph_for_c
from models.compiler.sources import SourceOptions
from models.compiler.writing.hub_config import read_config
from models.datasets.samples import read_folder
from models.images.preprocess import read_preprocess
from models.packs.pack import read_pack
from models.sizes import format_size
from pipeline.checking.check_graph import check_graph
from pipeline.export_c.export import Exported, ExportOptions, export_c, working_folder, write_export
from pipeline.export_c.network.network import ExportError
from pipeline.export_c.writing.c_text import is_header, is_identifier

# Of a compiler's memory a byte of constant weights takes about 75: what more it takes is worth a warning.
_MANY_BYTES = 32 << 20


def export(
    source: Annotated[Path, typer.Argument(help="The ONNX file.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder to write: NAME.c, NAME.h.")
    ],
    weights: Annotated[
        Literal["const", "callback"],
        typer.Option(
            help="const: constants in the source; callback: NAME.weights, which your function reads."
        ),
    ] = "const",
    io: Annotated[
        Literal["caller", "arena"],
        typer.Option(help="Where inputs and outputs lie: the caller's memory, or the arena."),
    ] = "caller",
    input_: Annotated[
        Literal["memory", "callback"],
        typer.Option(
            "--input",
            help="memory: the image is there as a whole; callback: your function brings its rows.",
        ),
    ] = "memory",
    arena: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory for activations: more of it saves time. Default: as little as it can be.",
        ),
    ] = None,
    buffer: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory for weights that a callback reads. Default: at most a quarter of the arena.",
        ),
    ] = None,
    io_bytes: Annotated[
        bool,
        typer.Option(
            "--io-bytes",
            help="Of a quantised network: inputs and outputs are bytes, with their scales in the header.",
        ),
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="What names in C begin with. Default: the file's name.")
    ] = None,
    batch: Batch = None,
    shape: Shapes = None,
    keep_input: InputNames = None,
    without_output: WithoutOutputs = None,
    precision: Annotated[
        Literal["none", "int8"],
        typer.Option(
            help="int8: computed in 8-bit integers, calibrated on pictures (--calibrate)."
        ),
    ] = "none",
    calibrate: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Pictures like those to come, of any size; a hundred do."),
    ] = None,
    preprocess: Annotated[
        Path | None,
        typer.Option(
            help="TOML file: how a picture becomes the input. Default: F.preprocess.toml next to F.onnx."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option(help="Compare the graph that becomes C with ONNX Runtime on the source.")
    ] = True,
    force: Annotated[bool, typer.Option("--force", help="Replace what an export wrote.")] = False,
    as_json: Json = False,
) -> None:
    """Write an ONNX file as C99 with a static arena. That is one .c and one .h, without malloc."""
    if buffer is not None and weights == "const":
        raise typer.BadParameter("constant weights have no buffer", param_hint="--buffer")
    if name is not None and not is_identifier(name):
        message = f"{name!r} does not begin names in C: a letter, then letters, digits, _"
        raise typer.BadParameter(message, param_hint="--name")
    if name is not None and is_header(name):
        message = f"{name}.h is a header of C, which ours would hide"
        raise typer.BadParameter(message, param_hint="--name")
    if (precision == "int8") != (calibrate is not None):
        raise typer.BadParameter("--precision int8 and --calibrate DIR go together")
    _check_file(source)
    pictures = read_folder(calibrate) if calibrate else None
    if pictures:
        pictures.check_pictures()
    files = recipes_beside(source)
    recipe = preprocess or files.get("preprocess")
    warnings: list[str] = []
    read = SourceOptions(
        preprocess=read_preprocess(recipe) if recipe else None,
        configs=tuple(read_config(files[option]) for option in CONFIGS if option in files),
        batch=batch,
        shapes=shapes_of(shape),
        keep_inputs=tuple(keep_input or ()),
        without_outputs=tuple(without_output or ()),
        calibrate=pictures.pictures if pictures else None,
        warn=warnings.append,
    )
    sizes_ = size(buffer, "--buffer"), size(arena, "--arena")
    options = ExportOptions(weights, io, name, sizes_[0], input_, sizes_[1], io_bytes)
    with (
        steps(f"exporting {source.name}") as progress,
        working_folder(output, force) as folder,
    ):
        graph = graph_for_c(source, folder, read, progress)
        progress("export")
        exported = export_c(graph, options, f"layerstream {own_version()}")
        if check:
            warnings += [f"{source}: {note}" for note in check_graph(graph, progress)]
        progress("write")
        sizes = write_export(exported, output, force)
    for warning in warnings:
        warn(warning)
    if exported.weight_bytes > _MANY_BYTES and weights == "const":
        warn(
            f"{format_size(exported.weight_bytes)} of constants take a C compiler about "
            f"{format_size(60 * exported.weight_bytes)} of memory; --weights callback takes none"
        )
    document = _document(exported, sizes, output)
    if as_json:
        print_json(document)
        return
    print_facts(_facts(exported, document, source.stem))
    say("")
    file = output / f"{exported.api.prefix}.c"
    suggest("To compile it", shlex.join(["cc", "-std=c99", "-O2", "-c", str(file)]))


def _check_file(source: Path) -> None:
    """Refuse a pack, whose layouts and products are those of its target.

    Raises:
        ExportError: it is one; the message has the command that exports what it was compiled from.
        PackError: it is another folder.
    """
    if source.is_dir():
        file = read_pack(source).manifest.source.file
        raise ExportError(
            f"{source}: a pack, which is laid out for its target; C is made of the file that was "
            f"compiled, with the same options: layerstream export-c {shlex.quote(file)} -o DIR"
        )


def _document(exported: Exported, sizes: dict[str, int], output: Path) -> dict[str, Any]:
    return {
        "files": {str(output / name): n_bytes for name, n_bytes in sizes.items()},
        "name": exported.api.prefix,
        "function": exported.api.run,
        "arena_bytes": exported.memory.arena_bytes,
        "buffer_bytes": exported.buffer_bytes,
        "weight_bytes": exported.weight_bytes,
        "steps": len(exported.memory.steps),
        "inputs": {exported.api.names[p.name]: list(p.shape) for p in exported.api.network.inputs},
        "outputs": {
            exported.api.names[p.name]: list(p.shape) for p in exported.api.network.outputs
        },
    }


def _facts(exported: Exported, document: dict[str, Any], name: str) -> Iterator[tuple[str, str]]:
    api = exported.api
    for file, n_bytes in document["files"].items():
        yield "file", f"{file}, {format_size(n_bytes)}"
    if api.prefix != name:
        yield "names", f"begin with {api.prefix!r}, for {name!r}"
    yield "function", f"{api.run};"
    for port in api.network.inputs:
        by_rows = ", brought by rows" * api.asks
        yield "input", _port(exported, port.name, tensor(port)) + by_rows
    for port in api.network.outputs:
        yield "output", _port(exported, port.name, tensor(port))
    buffer = f", and {format_size(exported.buffer_bytes)} for weights" * bool(exported.buffer_bytes)
    yield "static", f"{format_size(exported.memory.arena_bytes)} of activations{buffer}"
    where = "read by the callback" if api.reads else "constant"
    yield "weights", f"{format_size(exported.weight_bytes)}, {where}"


def _port(exported: Exported, name: str, what: str) -> str:
    shown = exported.api.names[name]
    return f"{shown}: {what}" if shown == name else f"{shown}, for {name!r}: {what}"
