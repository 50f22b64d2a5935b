"""``layerstream zoo``: networks to try and to measure with."""

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.arguments import Json, size
from cli.printing.help import CommandGroup
from cli.printing.output import print_json, print_table, say, suggest
from cli.printing.sentences import command, network_size
from cli.printing.steps import steps
from models.sizes import format_size


class Precision(StrEnum):
    """What numbers of a network are."""

    INT8 = "int8"
    FP16 = "fp16"
    FP32 = "fp32"


#: Bytes of a number.
NUMBER_BYTES = {Precision.INT8: 1, Precision.FP16: 2, Precision.FP32: 4}
_TUNNELS: dict[str, Any] = {"rich_help_panel": "Networks in a memory budget (patchnet)"}

app = CommandGroup(help="Networks with random weights, to try and to measure.")


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the networks.

    Example: layerstream zoo list
    """
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
    budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Most memory of a layer.", **_TUNNELS)
    ] = None,
    precision: Annotated[
        Precision, typer.Option(help="What --budget counts a number as.", **_TUNNELS)
    ] = Precision.INT8,
    image: Annotated[
        str | None,
        typer.Option("--input", metavar="HxWx3", help="Instead of --resolution.", **_TUNNELS),
    ] = None,
    classes: Annotated[int | None, typer.Option(min=1, **_TUNNELS)] = None,
    patches: Annotated[int | None, typer.Option(help="In a grid.", **_TUNNELS)] = None,
    central: Annotated[
        bool | None, typer.Option("--central/--no-central", help="One more.", **_TUNNELS)
    ] = None,
    margin: Annotated[
        int | None, typer.Option(help="Pixels that a patch has more.", **_TUNNELS)
    ] = None,
    expansion: Annotated[int | None, typer.Option(help="Of bottlenecks.", **_TUNNELS)] = None,
    stem: Annotated[
        int | None, typer.Option(help="Channels of the first convolution.", **_TUNNELS)
    ] = None,
    shared: Annotated[
        bool | None, typer.Option("--shared", help="All tunnels share weights.", **_TUNNELS)
    ] = None,
    as_json: Json = False,
) -> None:
    """Build a network and write it as ONNX.

    Example: layerstream zoo build resnet50 -o resnet50.onnx
    """
    from models import zoo
    from models.zoo.entry import OURS

    n_bytes = size(budget, "--budget")
    all_options = {
        "budget": None if n_bytes is None else n_bytes // NUMBER_BYTES[precision],
        "image": _image(image),
        "classes": classes,
        "patches": patches,
        "central": central,
        "margin": margin,
        "expansion": expansion,
        "stem": stem,
        "shared": shared,
    }
    options = {key: value for key, value in all_options.items() if value is not None}
    if image is not None and resolution is not None:
        raise typer.BadParameter(
            "--resolution says it as well; leave one out", param_hint="--input"
        )
    with steps(f"building {name}") as progress:
        built = zoo.build(name, output, resolution, width, seed, options=options, progress=progress)
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


def _image(text: str | None) -> tuple[int, int, int] | None:
    """Return height, width and channels of ``text``, as 224x224x3.

    Raises:
        typer.BadParameter: it is none of that; the message says what is expected.
    """
    if text is None:
        return None
    parts = text.split("x")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise typer.BadParameter(f"{text!r} is not HEIGHTxWIDTHx3", param_hint="--input")
    height, width, channels = map(int, parts)
    if channels != 3:
        raise typer.BadParameter(f"{text!r}: images have 3 channels", param_hint="--input")
    return height, width, channels
