"""``layerstream import-darknet`` and ``export-darknet``: Darknet's files to ONNX and back."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.arguments import Json
from cli.printing.output import print_facts, print_json, print_table, say, suggest
from cli.printing.sentences import command, network_size
from cli.printing.steps import steps, working
from cli.printing.tables import unit_of_rows
from models.images.preprocess import read_labels
from models.records import plain
from models.sizes import format_size


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
    from models.darknet.network import layer_sizes, source_sizes
    from models.darknet.skeleton import skeleton
    from models.graphs.onnx_writer import skeleton_graph
    from models.graphs.traits import count_parameters

    texts = read_labels(labels) if labels else ()
    with steps(f"importing {cfg.name}") as progress:
        network = import_network(cfg, weights, output, resolution, texts, seed, progress=progress)
    summary = {
        "name": cfg.stem,
        "file": str(output),
        **plain(source_sizes(network), leave_out={"tool"}),
        "parameters": count_parameters(skeleton_graph(skeleton(network, cfg.stem))),
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
    say(f"{output}: written, {format_size(output.stat().st_size)}")
    print_facts(_facts(summary))
    pack = Path("repository", summary["name"])
    suggest("To make a pack of it", command("compile", output, "-o", pack))


def _facts(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    keys = ("weight_bytes", "layers", "largest_layer_bytes", "parameters")
    size = network_size(*(summary[key] for key in keys), counts="as Darknet counts them")
    whose = "random" if summary["weights"] == "random" else f"of {summary['weights']}"
    yield "input", f"{summary['resolution']} x {summary['height']} pixels"
    yield "weights", f"{whose}: {size}"


def _print_layers(table: list[dict[str, Any]]) -> None:
    """Print a row a layer; its input's shape, which --json has too, is the output's of another."""
    keys = tuple(f"{size}_bytes" for size in ("weight", "input", "output", "scratch", "total"))
    unit = unit_of_rows(table, *keys)
    print_table(
        f"Layers, their outputs' shapes, and memory in {unit.name}",
        ("layer", "kind", "shape", "weights", "input", "output", "scratch", "total"),
        (
            (
                str(row["index"]),
                row["kind"],
                "x".join(map(str, row["output"])),
                *(unit.show(row[key]) for key in keys),
            )
            for row in table
        ),
    )


def export_darknet(
    source: Annotated[Path, typer.Argument(help="An ONNX file that import-darknet wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .weights file to write.")],
    as_json: Json = False,
) -> None:
    """Write an imported network's weights for Darknet again."""
    from models.darknet.weights import export_weights

    with working(f"exporting {source.name}"):
        export_weights(source, output)
    n_bytes = output.stat().st_size
    if as_json:
        print_json({"file": str(output), "bytes": n_bytes})
        return
    say(f"{output}: written, {format_size(n_bytes)}")
