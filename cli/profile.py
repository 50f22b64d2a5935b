"""``layerstream profile``: what reads, copies and kernels of a pack take on this machine."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
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
from cli.printing.output import print_json, print_table, say, suggest
from cli.printing.sentences import profiling as profiling_command
from cli.printing.steps import bar
from models.packs.pack import Pack, open_pack
from models.records import plain
from models.sizes import format_size
from models.whole_files import check_writable
from pipeline.budget.budget import Budget
from pipeline.budget.candidates import Candidate, share_served
from pipeline.devices.base import Device
from pipeline.fitting.fit import fit
from pipeline.fitting.judge import check_fits
from pipeline.fitting.wanted import LEAST, Wanted, of_one_engine
from pipeline.measuring import profiling, sweeps
from pipeline.measuring.plan_races import RacedBudget, default_budgets, measure_plans
from pipeline.profiles.disk_curves import MAX_AGE_DAYS, DiskCurves
from pipeline.profiles.found_plans_file import plans_of
from pipeline.profiles.profile import Profile, ProfileError
from pipeline.profiles.profile_file import disturbed_by, load_profile, save_profile
from pipeline.profiles.times import plan_key
from pipeline.program.prepare import prepare
from pipeline.schedule.architectures import ARCHITECTURES, Architecture
from server.memory.process_memory import free_bytes


def profile(
    context: typer.Context,
    pack: PackPath,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE",
            help="Measure plans within it; repeatable. Default: from the smallest to all weights. With "
            "--bound one: the `--budget` of a service of this pack.",
        ),
    ] = None,
    iterations: Annotated[
        int,
        typer.Option(min=1, metavar="NUMBER", help="Traced passes with all weights in memory."),
    ] = profiling.DEFAULT_ITERATIONS,
    device_name: DeviceName = "cpu",
    recompile: Recompile = False,
    memory_kind: MemoryKind = None,
    precision: PrecisionName = "fp32",
    threads: Threads = None,
    pace: Pace = None,
    renew_disk: Annotated[
        bool,
        typer.Option(
            "--renew-disk",
            help=f"Measure the disk again; else all packs share what was measured of it in {MAX_AGE_DAYS} "
            "days.",
        ),
    ] = False,
    bound: Annotated[
        bool, typer.Option("--bound", help="Measure one configuration for a bound on its delay.")
    ] = False,
    architecture_name: Annotated[
        str,
        typer.Option("--architecture", metavar="NAME", help="Of the configuration, with --bound."),
    ] = "auto",
    ring: Ring = None,
    weights: Weights = None,
    runs: Annotated[
        int,
        typer.Option(min=1, metavar="NUMBER", help="Sweeps of the configuration, with --bound."),
    ] = sweeps.DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """Measure a pack: the disk, and plans against each other.

    The profile is written into the folder of the pack.
    """
    sizes = [n_bytes for text in budget or () if (n_bytes := size(text, "--budget")) is not None]
    if not bound:
        _refuse_configuration(context)
    elif pace is not None:
        raise typer.BadParameter("a bound is of the real disk", param_hint="--pace")
    elif len(sizes) > 1:
        raise typer.BadParameter("a bound is of one budget", param_hint="--budget")
    device = open_named(context, device_name, threads, memory_kind, precision)
    opened = open_pack(pack, device.target, recompile)
    _check_writable(opened)
    if bound:
        limits = Wanted(
            ring_bytes=size(ring, "--ring"), weight_bytes=weight_bytes(weights, opened.manifest)
        )
        total = sizes[0] if sizes else None
        _measure_bound(
            opened, device, architecture(architecture_name), limits, total, runs, as_json
        )
        return
    _check_budgets(opened, device, sizes)
    disk = disk_of(pace)
    raced: list[RacedBudget] = []
    with bar(f"profiling {opened.name}") as shown:
        measured = profiling.profile_pack(
            *(opened, device, iterations, shown.step, shown.doing),
            disk=disk,
            curves=DiskCurves.of_user(renew_disk),
        )
        program, auto = prepare(opened, device), device.adapt(ARCHITECTURES["auto"])
        cached = plans_of(opened)
        budgets = sizes or default_budgets(program, auto, cached)
        shown.doing("plans against each other")

        def report(one: RacedBudget) -> None:
            raced.append(one)
            shown.step(len(raced), len(budgets))

        measured = measure_plans(
            *(program, auto, measured, device, budgets),
            cached=cached,
            report=report,
            disk=disk,
            free_bytes=free_bytes() or None,
        )
    cached.save()
    if sizes:
        measured = _with_earlier(measured, opened)
    file = save_profile(measured, opened)
    summary = {
        "model": opened.name,
        "file": str(file),
        "machine": plain(measured.machine),
        **_figures_of(measured, raced),
    }
    if as_json:
        print_json(summary)
        return
    _print_profile(opened.name, measured, raced)
    users = "`simulate`, `plan` and `run` use it, `serve` when it loads the model"
    say(f"{file}: written; {users if pace is None else '`bench` with this --pace uses it'}")
    for shape in opened.others:
        suggest(f"To measure shape {shape.manifest.shape_text}", profiling_command(shape))


def _with_earlier(measured: Profile, pack: Pack) -> Profile:
    """Return ``measured`` with the plans and limits of an earlier profile of just this machine."""
    try:
        earlier = load_profile(pack, measured.machine, logging.DEBUG)
    except ProfileError:
        return measured
    if not earlier.exact or earlier.tuning != measured.tuning:
        return measured
    both = earlier.with_plans(measured.plans)
    return replace(measured, plans=both.plans, limits=both.limits)


def _refuse_configuration(context: typer.Context) -> None:
    """Refuse options of the one configuration that is measured with --bound, where it is not.

    Raises:
        typer.BadParameter: one is given.
    """
    for name in ("architecture_name", "ring", "weights", "runs"):
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


def _check_budgets(pack: Pack, device: Device, sizes: Sequence[int]) -> None:
    """Refuse budgets in which there is no plan to measure; on a GPU they are known when it is tuned.

    Raises:
        PlanError: the smallest is too small, with what is required.
    """
    if sizes and device.target.capability is None:
        program, auto = prepare(pack, device), device.adapt(ARCHITECTURES["auto"])
        check_fits(program, fit(program, auto, LEAST).plan, min(sizes))


def _measure_bound(
    pack: Pack,
    device: Device,
    asked: Architecture,
    limits: Wanted,
    total: int | None,
    runs: int,
    as_json: bool,
) -> None:
    """Measure the limits of one plan and add them to the profile; ``total``: the budget of `serve`.

    Raises:
        ProfileError: there is no profile of exactly this machine. PlanError: there is no such plan.
    """
    program, known = profiled(pack, device)
    if not known.exact:
        raise ProfileError(
            f"{pack.folder}: a bound needs a profile of exactly here; profile it first"
        )
    candidate = Candidate(program, device.adapt(asked), limits, known)
    if total is None and (limits.ring_bytes or limits.weight_bytes):
        plan = fit(*candidate.question).plan
    else:
        plans = share_served([candidate], Budget(total or UNLIMITED_BYTES), None, "auto").plans()
        plan = of_one_engine(plans[0]).plan
    candidate.known.save()
    with bar(f"measuring {plan.architecture.name} of {program.name}") as shown:
        measured = sweeps.measure_limits(program, plan, device, runs, shown.step)
    save_profile(known.with_limits(plan, measured), program.pack)
    document = {
        "model": program.name,
        "architecture": plan.architecture.name,
        "plan": plan_key(plan),
        "weight_bytes": plan.weight_bytes,
        "runs": runs,
        "bound_ms": measured.bound_seconds(plan) * 1e3,
    }
    if as_json:
        print_json(document)
        return
    say(
        f"{program.name}: {plan.architecture.name} with {format_size(plan.weight_bytes)} for weights "
        f"answers within {document['bound_ms']:.1f} ms, by {runs} sweeps"
    )


# What ``layerstream profile`` says of what it measured: for programs, in a table, in sentences.


def _figures_of(profile: Profile, raced: Sequence[RacedBudget]) -> dict[str, Any]:
    """Return what ``profile --json`` says of the measurement."""
    return {
        "date": profile.date,
        "resident_ms": profile.resident.median * 1e3,
        "outside_ms": profile.outside.median * 1e3,
        "others": profile.others,
        "tuning": plain(profile.tuning),
        "reads": [asdict(item) for item in profile.reads],
        "copies": [asdict(item) for item in profile.copies],
        "plans": [
            {
                "budget_bytes": race.n_bytes,
                "total_bytes": race.plan.total_bytes,
                "times": race.plan.ratio,
                "spread": race.plan.spread,
                "candidates": race.candidates,
                "kept": race.is_sure,
            }
            for race in raced
        ],
    }


def _print_profile(name: str, profile: Profile, raced: Sequence[RacedBudget]) -> None:
    """Print transfers and plans of the pack ``name`` as tables, and the rest in words."""
    _print_transfers(name, profile)
    if raced:
        _print_plans(name, profile, raced)
    for line in _sentences(profile, raced):
        say(line)


def _print_plans(name: str, profile: Profile, raced: Sequence[RacedBudget]) -> None:
    usual = profile.resident.median * 1e3
    print_table(
        f"{name}: the best of the plans that were run against each other",
        ("budget", "memory", "times all memory", "quartiles", "delay ms", "of plans"),
        (
            (
                format_size(race.n_bytes),
                format_size(race.plan.total_bytes),
                f"{race.plan.ratio:.2f}",
                f"{race.plan.spread[0]:.2f} to {race.plan.spread[1]:.2f}",
                f"{race.plan.ratio * usual:.1f}",
                str(race.candidates),
            )
            for race in raced
        ),
    )


def _sentences(profile: Profile, raced: Sequence[RacedBudget]) -> Iterator[str]:
    """Yield in words what was measured and stands in no table."""
    yield (
        f"with all memory a pass over the weights takes {profile.resident.median * 1e3:.1f} ms; of a "
        f"request {profile.outside.median * 1e3:.2f} ms are outside of its pass"
    )
    tuned = plain(profile.tuning, without_defaults=True)
    chosen = [f"{tuned[name]} ({name.replace('_', ' ')})" for name in tuned if name != "algorithms"]
    if chosen:
        yield f"fastest here: {', '.join(chosen)}"
    unsure = [format_size(race.n_bytes) for race in raced if not race.is_sure]
    if unsure:
        yield (
            f"warning: too uneven to say which plan is best within {', '.join(unsure)}: nothing is kept "
            "of these; run it again when the machine is quiet"
        )
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
