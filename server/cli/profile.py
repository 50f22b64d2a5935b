"""``layerstream profile``: what reads, copies and kernels of a pack take on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.progress import Progress

from models.pack import Pack, open_pack
from pipeline import limit_times, profiling
from pipeline.devices.base import Device
from pipeline.planning.plan import Plan
from pipeline.predict import Wanted
from pipeline.profile import Profile, ProfileError, plan_key
from pipeline.profile_file import save_profile
from server.budget import Budget
from server.cli.options import (
    DeviceName,
    Json,
    MemoryKind,
    PackPath,
    PrecisionName,
    Recompile,
    Ring,
    Threads,
    architecture,
    open_named,
    size,
)
from server.cli.output import console, errors, print_json, print_table
from server.cli.predicted import UNLIMITED_BYTES, profiled
from server.cli.weights import Weights, weight_bytes
from server.sharing import Candidate, share_budget
from server.sizes import format_size


def profile(
    context: typer.Context,
    pack: PackPath,
    iterations: Annotated[
        int, typer.Option(min=1, help="Sweeps of each size of chunks; fewer are faster.")
    ] = profiling.DEFAULT_ITERATIONS,
    device_name: DeviceName = "cpu",
    recompile: Recompile = False,
    memory_kind: MemoryKind = None,
    precision: PrecisionName = "fp32",
    threads: Threads = None,
    bound: Annotated[
        bool, typer.Option("--bound", help="Measure one configuration for a bound on its delay.")
    ] = False,
    architecture_name: Annotated[
        str, typer.Option("--architecture", help="Of the configuration, with --bound.")
    ] = "auto",
    budget: Annotated[
        str | None, typer.Option(help="Of the configuration: what `serve` has for this pack.")
    ] = None,
    ring: Ring = None,
    weights: Weights = None,
    runs: Annotated[
        int, typer.Option(min=1, help="Sweeps of the configuration, with --bound.")
    ] = limit_times.DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """Measure a pack on this machine; planning and prediction need it."""
    device = open_named(context, device_name, threads, memory_kind, precision)
    opened = open_pack(pack, device.target, recompile)
    if bound:
        wanted = Wanted(size(ring, "--ring"), weight_bytes(weights, opened.manifest))
        opened, known = profiled(opened, device)
        if not known.exact:
            raise ProfileError(f"{pack}: a bound needs a profile of exactly here; profile it first")
        asked = device.adapt(architecture(architecture_name))
        candidate = Candidate(opened, asked, wanted, known)
        room = Budget(size(budget, "--budget") or UNLIMITED_BYTES)
        plan = share_budget([candidate], room)[0].plan
        _bound(opened, plan, known, device, runs, as_json)
        return
    with _progress(f"profiling {opened.name}") as update:
        measured = profiling.profile_pack(opened, device, iterations, update)
    file = save_profile(measured, opened)
    summary = {
        "model": opened.name,
        "file": str(file),
        "machine": measured.machine.model_dump(),
        **_figures(measured),
    }
    if as_json:
        print_json(summary)
        return
    _print_transfers(opened.name, measured)
    for name, value in _figures(measured).items():
        if not isinstance(value, list):
            console.print(f"{name:>20}  {value}", highlight=False, soft_wrap=True)
    console.print(f"{file}: written", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def _progress(title: str) -> Iterator[profiling.Progress]:
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _bound(
    pack: Pack, plan: Plan, known: Profile, device: Device, runs: int, as_json: bool
) -> None:
    """Measure the limits of ``plan`` and add them to the profile."""
    with _progress(f"measuring {pack.name}") as update:
        limits = limit_times.measure_limits(pack, plan, device, runs, update)
    save_profile(known.with_limits(plan, limits), pack)
    document = {
        "model": pack.name,
        "architecture": plan.architecture.name,
        "plan": plan_key(plan),
        "weight_bytes": plan.weight_bytes,
        "runs": runs,
        "bound_ms": limits.bound_seconds(plan) * 1e3,
    }
    if as_json:
        print_json(document)
        return
    console.print(
        f"{pack.name}: {plan.architecture.name} in {format_size(plan.weight_bytes)}: "
        f"bound {document['bound_ms']:.1f} ms, of {runs} sweeps",
        highlight=False,
        soft_wrap=True,
    )


def _figures(profile: Profile) -> dict[str, Any]:
    return {
        "date": profile.date,
        "kernels": len(profile.kernels),
        "spans": len(profile.spans),
        "span_reads_ms": sum(span.median for span in profile.spans) * 1e3,
        "outside_ms": profile.outside.median * 1e3,
        "slowdown": profile.slowdown,
        "tuning": profile.tuning.model_dump(),
        "reads": [item.model_dump() for item in profile.reads],
        "copies": [item.model_dump() for item in profile.copies],
    }


def _print_transfers(name: str, profile: Profile) -> None:
    rows = [
        (
            "read",
            format_size(item.n_bytes),
            str(item.depth),
            item.seconds,
            item.n_bytes * item.depth,
        )
        for item in profile.reads
    ] + [
        ("copy", format_size(item.n_bytes), "1", item.seconds, item.n_bytes)
        for item in profile.copies
    ]
    print_table(
        f"{name}: transfers",
        ("what", "size", "in flight", "median ms", "p95 ms", "max ms", "GB/s"),
        (
            (
                what,
                shown,
                depth,
                *(f"{of * 1e3:.3f}" for of in (seconds.median, seconds.p95, seconds.max)),
                f"{n_bytes / seconds.median / 1e9:.2f}",
            )
            for what, shown, depth, seconds, n_bytes in rows
        ),
    )
