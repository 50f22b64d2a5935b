"""``layerstream bench peers``: networks beside ONNX Runtime and OpenVINO, one table of all."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.arguments.architectures import profile_for
from cli.arguments.options import Json, open_named
from cli.arguments.served import Threads
from cli.benching.networks import named, network
from cli.printing.bench_tables import network_lines, print_peers
from cli.printing.output import print_json, tell, warn
from cli.printing.steps import bar
from pipeline.benchmark.comparison import WAYS, Comparison, compare
from pipeline.benchmark.configuration import BenchConfiguration
from pipeline.benchmark.ours import StreamedArchitecture
from pipeline.benchmark.run import machine
from pipeline.devices.base import Device
from pipeline.energy import find_meter
from pipeline.schedule.architectures import ARCHITECTURES

_USUAL = ",".join(f"{way.percent:g}%" for way in WAYS if way.percent is not None)


def peers(
    context: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(metavar="NETWORK...", help="Names from `zoo list`, packs, or ONNX files."),
    ],
    runs: Annotated[int, typer.Option(min=1, help="Runs of each, taking turns.")] = 20,
    weights: Annotated[
        str, typer.Option(help="Parts of the weights that `auto` may hold, comma-separated.")
    ] = _USUAL,
    resolution: Annotated[
        int | None, typer.Option(min=1, help="Of networks of the zoo, in pixels.")
    ] = None,
    threads: Threads = None,
    folder: Annotated[
        Path, typer.Option(help="Where networks are built and compiled, and removed again.")
    ] = Path(),
    as_json: Json = False,
) -> None:
    """Compare networks with ONNX Runtime and OpenVINO holding all weights: delay, memory of a cgroup.

    Rows of each network are said on stderr when it ends, and all in one table in the end.
    """
    ways = [
        StreamedArchitecture("pre"),
        *(StreamedArchitecture("auto", percent) for percent in _percents(weights)),
    ]
    device = open_named(context, "cpu", threads)
    given = [named(name, resolution) for name in names]
    networks = []
    for each in given:
        # No word of the profile of a pack that was made just now, and goes again.
        kept = warn if each.path is not None and each.path.is_dir() else _silent
        with network(each, resolution, folder) as (pack, source):
            wanted = Comparison(pack, source, device.threads, ways, runs=runs)
            networks.append(_measured(wanted, device, kept))
        for line in network_lines(networks[-1]):
            tell(line)
    result = {"machine": machine(device), "runs": runs, "networks": networks}
    if as_json:
        print_json(result)
    else:
        print_peers(result)


def _silent(line: str) -> None:
    pass


def _measured(
    wanted: Comparison, device: Device, say_profile: Callable[[str], None]
) -> dict[str, Any]:
    auto = BenchConfiguration("auto", ARCHITECTURES["auto"])
    with bar(f"profiling {wanted.pack.name}") as shown:
        profile_for(wanted.pack, [auto], device, say_profile, shown.step)
    with bar(f"measuring {wanted.pack.name}") as shown:
        return compare(
            wanted, progress=lambda done: shown.step(done, wanted.runs), meter=find_meter()
        )


def _percents(text: str) -> list[float]:
    """Return the percentages that ``text`` lists, each once.

    Raises:
        typer.BadParameter: one is none above 0 and up to 100.
    """
    parts = [part.strip() for part in text.split(",")]
    try:
        percents = [float(part.removesuffix("%")) for part in parts if part.endswith("%")]
    except ValueError:
        percents = []
    if len(percents) != len(parts) or not all(0 < percent <= 100 for percent in percents):
        raise typer.BadParameter(f"{text!r} is not 5%,2%,...", param_hint="--weights")
    return list(dict.fromkeys(percents))
