"""``layerstream zoo``: networks to try and to measure with."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from server.cli.arguments.options import Json
from server.cli.printing.output import print_json, print_table, say, suggest
from server.cli.printing.sentences import command, network_size
from server.cli.printing.steps import steps
from server.settings.sizes import format_size

app = typer.Typer(help="Networks with seeded random weights, to try and to measure with.")


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the networks."""
    from models import zoo  # onnx: not for the service

    entries = zoo.ENTRIES.values()
    if as_json:
        fields = ("name", "description", "parameters", "resolution")
        print_json([{name: getattr(entry, name) for name in fields} for entry in entries])
        return
    print_table(
        "Zoo",
        ("name", "parameters", "weights MiB", "px", "what"),
        (
            (
                entry.name,
                f"{entry.parameters:,}",
                f"{entry.parameters * 4 / 2**20:.1f}",
                str(entry.resolution),
                entry.description,
            )
            for entry in entries
        ),
    )


@app.command()
def build(
    name: Annotated[str, typer.Argument(help="A name from `zoo list`.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The ONNX file to write.")],
    resolution: Annotated[int | None, typer.Option(min=1, help="Input size in pixels.")] = None,
    width: Annotated[float, typer.Option(help="Factor for all channels (MobileNetV1).")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the random weights.")] = 0,
    as_json: Json = False,
) -> None:
    """Build a network and write it as ONNX."""
    from models import zoo
    from models.zoo.summary import OURS

    with steps(f"building {name}") as progress:
        built = zoo.build(name, output, resolution, width, seed, progress=progress)
    if as_json:
        print_json({**asdict(built), "file": str(built.file)})
    else:
        say(f"{output}: written, {format_size(built.bytes)}")
        ours = built.tool == OURS
        sizes = network_size(
            *(built.weight_bytes, built.layers, built.largest_layer_bytes, built.parameters),
            counts="with weights" if ours else f"as {built.tool} counts them",
        )
        say(f"weights: {sizes}")
        suggest("To make a pack of it", command("compile", output, "-o", Path("repository", name)))
