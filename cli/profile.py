"""``layerstream profile``: what reads, copies and kernels of a pack take on this machine."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

from cli.arguments import (
    UNLIMITED_BYTES,
    DeviceName,
    Json,
    MemoryKind,
    Pace,
    PackPath,
    PrecisionName,
    Recompile,
    Ring,
    Threads,
    Weights,
    architecture,
    disk_of,
    open_named,
    profiled,
    size,
    weight_bytes,
)
from cli.printing.output import print_json, print_table, say
from cli.printing.steps import bar
from models.packs.pack import Pack, open_pack
from models.whole_files import check_writable
from pipeline.devices.base import Device
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import Wanted
from pipeline.measuring import profiling, sweeps
from pipeline.planning.plan import Plan
from pipeline.profiles.profile import Profile, ProfileError
from pipeline.profiles.profile_file import disturbed_by, save_profile
from pipeline.profiles.times import plan_key
from pipeline.program.program import Program
from server.memory.budget import Budget
from server.memory.candidates import Candidate, share_budget
from server.settings.sizes import format_size


def profile(
    context: typer.Context,
    pack: PackPath,
    iterations: Annotated[
        int,
        typer.Option(
            min=1, metavar="NUMBER", help="Sweeps of each size of chunks; fewer are faster."
        ),
    ] = profiling.DEFAULT_ITERATIONS,
    device_name: DeviceName = "cpu",
    recompile: Recompile = False,
    memory_kind: MemoryKind = None,
    precision: PrecisionName = "fp32",
    threads: Threads = None,
    pace: Pace = None,
    bound: Annotated[
        bool, typer.Option("--bound", help="Measure one configuration for a bound on its delay.")
    ] = False,
    architecture_name: Annotated[
        str,
        typer.Option("--architecture", metavar="NAME", help="Of the configuration, with --bound."),
    ] = "auto",
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="With --bound: what `serve` has for this pack. Default: no limit."
        ),
    ] = None,
    ring: Ring = None,
    weights: Weights = None,
    runs: Annotated[
        int,
        typer.Option(min=1, metavar="NUMBER", help="Sweeps of the configuration, with --bound."),
    ] = sweeps.DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """Measure a pack on this machine; planning and prediction need it.

    The profile is written into the folder of the pack.
    """
    if not bound:
        _refuse_configuration(context)
    elif pace is not None:
        raise typer.BadParameter("a bound is of the real disk", param_hint="--pace")
    device = open_named(context, device_name, threads, memory_kind, precision)
    opened = open_pack(pack, device.target, recompile)
    disk = disk_of(pace)
    _check_writable(opened)
    if bound:
        wanted = Wanted(
            ring_bytes=size(ring, "--ring"), weight_bytes=weight_bytes(weights, opened.manifest)
        )
        program, known = profiled(opened, device)
        if not known.exact:
            raise ProfileError(f"{pack}: a bound needs a profile of exactly here; profile it first")
        asked = device.adapt(architecture(architecture_name))
        candidate = Candidate(program, asked, wanted, known)
        total = size(budget, "--budget")
        if total is None and (ring or weights):
            plan = fit(*candidate.question).plan
        else:
            room = Budget(total or UNLIMITED_BYTES)
            plan = share_budget([candidate], room).plans()[0].plan
        candidate.known.save()
        _bound(program, plan, known, device, runs, as_json)
        return
    with bar(f"profiling {opened.name}") as shown:
        measured = profiling.profile_pack(opened, device, iterations, shown.step, shown.doing, disk)
    file = save_profile(measured, opened)
    summary = {
        "model": opened.name,
        "file": str(file),
        "machine": measured.machine.model_dump(),
        **_figures_of(measured),
    }
    if as_json:
        print_json(summary)
        return
    _print_profile(opened.name, measured)
    users = "`simulate`, `plan` and `run` use it, `serve` when it loads the model"
    say(f"{file}: written; {users if pace is None else '`bench` with this --pace uses it'}")


def _refuse_configuration(context: typer.Context) -> None:
    """Refuse options of the one configuration that is measured with --bound, where it is not.

    Raises:
        typer.BadParameter: one is given.
    """
    for name in ("architecture_name", "budget", "ring", "weights", "runs"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                "it is of the configuration that --bound measures; give both or neither",
                param_hint=f"--{name.removesuffix('_name')}",
            )


def _check_writable(pack: Pack) -> None:
    """Refuse what could not be kept before it is measured.

    Raises:
        ProfileError: the folder of ``pack`` takes no file.
    """
    try:
        check_writable(pack.folder)
    except OSError as exc:
        message = f"{pack.folder}: a profile is written there: {exc.strerror or exc}"
        raise ProfileError(message) from exc


def _bound(
    program: Program, plan: Plan, known: Profile, device: Device, runs: int, as_json: bool
) -> None:
    """Measure the limits of ``plan`` and add them to the profile."""
    with bar(f"measuring {plan.architecture.name} of {program.name}") as shown:
        limits = sweeps.measure_limits(program, plan, device, runs, shown.step)
    save_profile(known.with_limits(plan, limits), program.pack)
    document = {
        "model": program.name,
        "architecture": plan.architecture.name,
        "plan": plan_key(plan),
        "weight_bytes": plan.weight_bytes,
        "runs": runs,
        "bound_ms": limits.bound_seconds(plan) * 1e3,
    }
    if as_json:
        print_json(document)
        return
    say(
        f"{program.name}: {plan.architecture.name} with {format_size(plan.weight_bytes)} for weights "
        f"answers within {document['bound_ms']:.1f} ms, by {runs} sweeps"
    )


# What ``layerstream profile`` says of what it measured: for programs, in a table, in sentences.


def _figures_of(profile: Profile) -> dict[str, Any]:
    """Return what ``profile --json`` says of the measurement."""
    return {
        "date": profile.date,
        "kernels": len(profile.kernels),
        "outside_ms": profile.outside.median * 1e3,
        "slowdown": profile.slowdown,
        "others": profile.others,
        "tuning": profile.tuning.model_dump(),
        "reads": [asdict(item) for item in profile.reads],
        "copies": [asdict(item) for item in profile.copies],
    }


def _print_profile(name: str, profile: Profile) -> None:
    """Print transfers of the pack ``name`` as a table, and the rest in words."""
    _print_transfers(name, profile)
    for line in _sentences(profile):
        say(line)


def _sentences(profile: Profile) -> Iterator[str]:
    """Yield what was measured beside transfers, in words."""
    yield f"{len(profile.kernels)} kernels timed; beside reads they take {profile.slowdown:.1%} longer"
    yield f"of a request {profile.outside.median * 1e3:.2f} ms are outside of its sweep"
    tuned = profile.tuning.model_dump(exclude_defaults=True)
    chosen = [f"{tuned[name]} ({name.replace('_', ' ')})" for name in tuned if name != "algorithms"]
    if chosen:
        yield f"fastest here: {', '.join(chosen)}"
    if profile.was_disturbed:
        yield f"warning: {disturbed_by(profile.others)}; run it again when the machine is quiet"


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
    if not rows:
        return  # no weights, no transfers
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
