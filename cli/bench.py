"""``layerstream bench``: measurements that users can repeat."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.arguments import (
    DeviceName,
    Json,
    MemoryKind,
    Pace,
    PackPath,
    PrecisionName,
    Recompile,
    Ring,
    Threads,
    disk_of,
    open_named,
    size,
)
from cli.benching import built, configurations, peers, profile_for
from cli.plots.figures import check_plotting
from cli.plots.measurements import plot_pipeline, plot_resolutions
from cli.printing.bench_tables import print_pipeline, print_resolutions
from cli.printing.help import CommandGroup
from cli.printing.output import check_text, print_json, warn, write_text
from cli.printing.steps import bar
from loader.readers.disk import REAL_DISK, Disk
from models.packs.pack import Pack, open_pack
from pipeline.benchmark.account import Traced, account, estimated_pass
from pipeline.benchmark.configuration import BenchConfiguration, PlannedConfiguration
from pipeline.benchmark.run import BenchOptions, bench_pipeline
from pipeline.benchmark.run import resolution as resolution_of
from pipeline.devices.base import Device
from pipeline.energy import find_meter
from pipeline.execution.errors import InputError
from pipeline.execution.perfetto import trace_document
from pipeline.fitting.predicting import Predictions
from pipeline.peers import PEERS
from pipeline.profiles.profile import Profile
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.trace import TraceEvent

app = CommandGroup(help="Measure on this machine.")
app.command()(peers)

_USUAL = "5%"
# Traced sweeps of each whose medians are told.
_EXPLAINED = 7
Iterations = Annotated[int, typer.Option(min=1, help="Runs of each, taking turns.")]
Peers = Annotated[
    bool, typer.Option("--peers/--no-peers", help="Measure what users would run instead.")
]
Plot = Annotated[Path | None, typer.Option(help=r"Folder for plots (needs matplotlib).")]
BenchWeights = Annotated[
    str | None,
    typer.Option(help=f"Memory for weights of the row auto, or a part of all. Default: {_USUAL}."),
]
_SWEPT = "pre,2s,2s-md,auto"


@app.command()
def pipeline(
    context: typer.Context,
    pack: PackPath,
    architectures: Annotated[
        str, typer.Option(help="Names, comma-separated; NAME@LIMIT limits memory for weights.")
    ] = "pre,seq,2s",
    iterations: Iterations = 20,
    weights: BenchWeights = None,
    ring: Ring = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="All memory of the row auto, its request included, as of run; then parts may run on "
            "rows.",
        ),
    ] = None,
    resolution: Annotated[
        int | None, typer.Option(min=1, help="What the pack must take, in pixels.")
    ] = None,
    device_name: DeviceName = "cpu",
    recompile: Recompile = False,
    memory_kind: MemoryKind = None,
    precision: PrecisionName = "fp32",
    threads: Threads = None,
    pace: Pace = None,
    source: Annotated[
        Path | None, typer.Option(help="The ONNX file that was compiled: what the peers run.")
    ] = None,
    with_peers: Peers = True,
    plot: Plot = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write one sweep of each for Perfetto, and what was predicted: F.json."),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Say where the time goes: regions, layers, waits for weights."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare architectures with each other, with ONNX Runtime and with OpenVINO holding all weights.

    Example: layerstream bench pipeline repository/yolov8n
    """
    device = open_named(context, device_name, threads, memory_kind, precision)
    opened = open_pack(pack, device.target, recompile)
    _check_resolution(opened, resolution)
    if budget is not None and weights is not None:
        raise typer.BadParameter("give --weights or --budget")
    total = size(budget, "--budget")
    chosen = configurations(architectures, weights or _USUAL, opened.manifest, total)
    ring_bytes = size(ring, "--ring")
    if plot is not None:
        check_plotting(plot)
    if trace is not None:
        check_text(trace)
    disk = disk_of(pace)
    profile = _profile(opened, chosen, device, warn, disk)
    program = prepare(opened, device)
    wanted = PEERS if with_peers else ()
    if explain and profile is None:
        raise typer.BadParameter(
            f"--explain compares with a profile: run `layerstream profile {pack}`"
        )
    traced = _EXPLAINED if explain else int(trace is not None)
    options = BenchOptions(iterations, ring_bytes, device, source, wanted, profile, disk, traced)
    result, sweeps = _measure(program, chosen, options)
    result["budget_bytes"] = total
    if trace is not None:
        write_text(trace, _document(program, sweeps, profile))
    if explain:
        assert profile is not None
        result["accounts"] = _accounts(program, sweeps, profile)
    if plot is not None:
        plot_pipeline(result, plot)
    if as_json:
        print_json(result)
    else:
        print_pipeline(result)


@app.command()
def resolutions(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A name from `zoo list`.")],
    sizes: Annotated[
        str, typer.Option("--resolutions", help="Sides in pixels, comma-separated.")
    ] = "224,320,416,512,608",
    architectures: Annotated[str, typer.Option(help="As of `bench pipeline`.")] = _SWEPT,
    iterations: Iterations = 10,
    weights: BenchWeights = None,
    threads: Threads = None,
    with_peers: Peers = False,
    folder: Annotated[
        Path, typer.Option(help="Where networks are built and compiled, and removed again.")
    ] = Path(),
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Measure a network of the zoo at several resolutions.

    Example: layerstream bench resolutions yolov4
    """
    sides = _sides(sizes)
    if plot is not None:
        check_plotting(plot)
    wanted = PEERS if with_peers else ()
    runs = []
    device = open_named(context, "cpu", threads)
    for side in sides:
        with built(name, side, folder) as (opened, source):
            chosen = configurations(architectures, weights or _USUAL, opened.manifest)
            # Without warnings of a missing profile: the pack was made for this run and is removed after it.
            profile = _profile(opened, chosen, device, lambda line: None)
            options = BenchOptions(iterations, None, device, source, wanted, profile, traced=0)
            runs.append(_measure(prepare(opened, device), chosen, options)[0])
    result = {"model": name, "machine": runs[0]["machine"], "runs": runs}
    if plot is not None:
        plot_resolutions(result, plot)
    if as_json:
        print_json(result)
    else:
        print_resolutions(result)


def _measure(
    program: Program, chosen: list[BenchConfiguration], options: BenchOptions
) -> tuple[dict[str, Any], dict[str, Traced]]:
    """Return the measurements, and the traced sweeps of each configuration."""
    sweeps: dict[str, Traced] = {}

    def keep(planned: PlannedConfiguration, traces: list[list[TraceEvent]]) -> None:
        sweeps[planned.configuration.label] = Traced(planned.plan, traces)

    with bar(f"measuring {program.name}") as shown:
        result = bench_pipeline(
            program,
            chosen,
            options,
            progress=lambda done: shown.step(done, options.iterations),
            meter=find_meter(),
            trace=keep if options.traced else None,
        )
    return result, sweeps


def _document(program: Program, sweeps: Mapping[str, Traced], profile: Profile | None) -> str:
    """Return a sweep of each as Perfetto reads it, and beside it the one that ``profile`` predicts."""
    shown: dict[str, Any] = {}
    estimates = Predictions.of(program, profile).estimates
    for label, traced in sweeps.items():
        shown[label] = traced.plan, traced.sweeps[-1]
        if profile is not None:
            shown[f"{label}, predicted"] = traced.plan, estimated_pass(traced.plan, estimates)
    return json.dumps(trace_document(shown, program)) + "\n"


def _accounts(
    program: Program, sweeps: Mapping[str, Traced], profile: Profile
) -> dict[str, list[dict[str, Any]]]:
    """Return the shares of each configuration but ``pre``."""
    pre, estimates = sweeps["pre"], Predictions.of(program, profile).estimates
    return {
        label: [share.as_dict() for share in account(traced, pre, estimates)]
        for label, traced in sweeps.items()
        if label != "pre"
    }


def _profile(
    pack: Pack,
    chosen: list[BenchConfiguration],
    device: Device,
    say: Callable[[str], None],
    disk: Disk = REAL_DISK,
) -> Profile | None:
    """Return the profile of ``pack``, as which ``device`` works from now on; ``say`` if it is made."""
    with bar(f"profiling {pack.name}") as shown:
        profile = profile_for(pack, chosen, device, say, shown.step, disk)
    if profile is not None:
        device.tune(profile.tuning)
    return profile


def _check_resolution(pack: Pack, resolution: int | None) -> None:
    """Check that ``pack`` takes images of ``resolution`` pixels.

    Raises:
        InputError: of another size.
    """
    own = resolution_of(pack.manifest)
    if resolution is not None and resolution != own:
        raise InputError(
            f"{pack.folder}: compiled for {own or 'no'} pixels, not {resolution}: build and compile "
            "it at that resolution"
        )


def _sides(text: str) -> list[int]:
    """Return the sides in pixels that ``text`` lists, each once.

    Raises:
        typer.BadParameter: one is no positive number.
    """
    try:
        sides = list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        sides = [0]
    if min(sides) < 1:
        raise typer.BadParameter(f"{text!r} is not 224,320,...", param_hint="--resolutions")
    return sides
