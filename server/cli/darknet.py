"""``layerstream import-darknet`` and ``export-darknet``: Darknet's files to ONNX and back."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from models.preprocess import read_labels
from server.cli.options import Json
from server.cli.output import console, errors, print_json, print_table
from server.sizes import format_size


def import_darknet(
    cfg: Annotated[Path, typer.Argument(help="The network: a cfg file of Darknet.")],
    weights: Annotated[
        Path | None, typer.Argument(help="Its .weights file; without it, weights are random.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The ONNX file to write.", show_default=False)
    ] = ...,  # type: ignore[assignment]
    resolution: Annotated[
        int | None, typer.Option(min=1, help="Width and height of the input in pixels.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="Text file, one label a line.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random weights.")] = 0,
    layers: Annotated[bool, typer.Option("--layers", help="List every layer.")] = False,
    as_json: Json = False,
) -> None:
    """Write a network of Darknet as ONNX."""
    from models.darknet.importer import import_network  # onnx: not for the service
    from models.darknet.sizes import layer_sizes, parameter_count, source_sizes

    texts = read_labels(labels) if labels else ()
    with errors.status(f"importing {cfg.name}"):
        network = import_network(cfg, weights, output, resolution, texts, seed)
    summary = {
        "name": cfg.stem,
        "file": str(output),
        **source_sizes(network).model_dump(exclude={"tool"}),
        "parameters": parameter_count(network),
        "resolution": network.width,
        "height": network.height,
        "weights": weights.name if weights else "random",
    }
    rows = layer_sizes(network) if layers else []
    table = [{**asdict(row), "total_bytes": row.total_bytes} for row in rows]
    if as_json:
        print_json({**summary, "layer_table": table} if layers else summary)
        return
    if layers:
        _print_layers(table)
    console.print(
        f"{output}: {network.width}x{network.height}, {summary['layers']} layers, "
        f"{summary['parameters']:,} parameters, weights {summary['weights']}: "
        f"{format_size(summary['weight_bytes'])}, "
        f"largest layer {format_size(summary['largest_layer_bytes'])}",
        highlight=False,
        soft_wrap=True,
    )


def _print_layers(table: list[dict[str, Any]]) -> None:
    sizes = ("weight", "input", "output", "scratch", "total")
    print_table(
        "Layers (MiB)",
        ("layer", "kind", "input", "output", "weights", *sizes[1:]),
        (
            (
                str(row["index"]),
                row["kind"],
                "x".join(map(str, row["input"])),
                "x".join(map(str, row["output"])),
                *(f"{row[f'{size}_bytes'] / 2**20:.2f}" for size in sizes),
            )
            for row in table
        ),
    )


def export_darknet(
    source: Annotated[Path, typer.Argument(help="An ONNX file that import-darknet wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .weights file to write.")],
    as_json: Json = False,
) -> None:
    """Write the weights of an imported network in Darknet's format again."""
    from models.darknet.weights import export_weights

    with errors.status(f"exporting {source.name}"):
        export_weights(source, output)
    n_bytes = output.stat().st_size
    if as_json:
        print_json({"file": str(output), "bytes": n_bytes})
        return
    console.print(f"{output}: {format_size(n_bytes)}", highlight=False, soft_wrap=True)
