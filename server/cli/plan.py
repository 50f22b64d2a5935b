"""``layerstream plan``: what packs would take of a budget, and how long they would take."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from models.packs.pack import Pack, open_pack
from pipeline.devices.base import Device
from pipeline.execution.errors import InputError
from pipeline.execution.leases import SHARED_KINDS
from pipeline.fitting.fit import Fitted
from pipeline.fitting.frontier import frontier
from pipeline.fitting.predict import Wanted, predict
from pipeline.planning.rows.explain import explain_regions
from pipeline.profiles.profile import Profile, ProfileError
from pipeline.schedule.architectures import ARCHITECTURES, Architecture
from server.cli.arguments import options
from server.cli.arguments.options import (
    ActivationsOption,
    ArchitectureName,
    DeviceName,
    Json,
    Recompile,
    RequestMemory,
    Ring,
    Threads,
    architecture,
    open_named,
    size,
)
from server.cli.arguments.predicted import PARTS, UNLIMITED_BYTES, memory_of, profiled
from server.cli.arguments.weights import Weights, weight_bytes
from server.cli.planning.deadlines import check_deadline, deadlines_of, seconds_of
from server.cli.planning.frontier import frontier_rows, print_frontier
from server.cli.printing.figures import MIB, number, unit_of_rows
from server.cli.printing.output import print_json, print_table, say
from server.cli.printing.sentences import shares
from server.cli.printing.steps import working
from server.memory.budget import Budget, check_requests
from server.memory.candidates import Candidate, share_budget
from server.memory.request_needs import Need
from server.plots.plans import arena_picture, frontier_picture

#: What PARTS are called where people read.
_PART_HEADS = ("weights", "activations", "scratch", "sessions", "objects", "tensors")


def plan(
    context: typer.Context,
    packs: Annotated[list[Path], typer.Argument(help="Packs that share the budget.")],
    budget: options.Budget = None,
    request_memory: RequestMemory = None,
    activations: ActivationsOption = "auto",
    delay: Annotated[
        str | None, typer.Option(help="Least memory that answers in so long, e.g. 800ms.")
    ] = None,
    weights: Weights = None,
    ring: Ring = None,
    architecture_name: ArchitectureName = "auto",
    deadline: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL=TIME", help="The same of one model, e.g. resnet50=50ms."),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say why, in words.")] = False,
    show_frontier: Annotated[
        bool, typer.Option("--frontier", help="Memory against delay of one pack.")
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(help="Draw one pack's arena over time, or its frontier: F.svg."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Plan as fast as a model that is loaded.")
    ] = False,
    device_name: DeviceName = "cpu",
    recompile: Recompile = False,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Plan packs within a budget: memory by kind, and with a profile the delay and its bound."""
    chosen = architecture(architecture_name)
    budget_bytes = size(budget, "--budget")
    target = seconds_of(delay)
    limits = (budget, weights, target, ring)
    unlimited = all(limit is None for limit in limits) and not (deadline or show_frontier)
    _check_options(unlimited, target is not None and bool(deadline))
    _check_pictures(packs, show_frontier, picture)
    device = open_named(context, device_name, threads)
    candidates, hints = [], []
    found = [open_pack(path, device.target, recompile) for path in packs]
    deadlines = deadlines_of(deadline or (), [pack.name for pack in found])
    for compiled in found:
        wanted = Wanted(
            size(ring, "--ring"),
            weight_bytes(weights, compiled.manifest),
            deadlines.get(compiled.name, target),
            thorough=not quick,
        )
        needed = wanted.delay_seconds is not None
        opened, profile, hint = _profiled_or_hint(compiled, device, needed)
        candidates.append(Candidate(opened, device.adapt(chosen), wanted, profile))
        hints.append(hint)
    if show_frontier:
        _frontier(candidates[0], device.adapt(ARCHITECTURES["pre"]), picture, as_json)
        return
    shared = Budget(budget_bytes or UNLIMITED_BYTES)
    needs = [Need.of(candidate.pack.manifest) for candidate in candidates]
    if budget_bytes is not None:  # as the service does; without a budget there is no service
        shared.set_aside(size(request_memory, "--request-memory"), needs)
        for candidate in candidates:
            check_requests(candidate.pack.name, candidate.pack.manifest, shared)
    with working("planning"):
        shares = share_budget(candidates, shared, activations)
        plans = shares.plans()
        for candidate, item in zip(candidates, plans, strict=True):
            check_deadline(candidate.pack.name, item, deadlines.get(candidate.pack.name))
        rows = [
            _planned(candidate, item, hint)
            for candidate, item, hint in zip(candidates, shares.plans(), hints, strict=True)
        ]
    if picture is not None:
        first = candidates[0].pack
        write_picture(picture, arena_picture(first.name, first.manifest, plans[0].plan))
    document = _document(budget_bytes, shared, shares.in_turns, rows)
    if as_json:
        print_json(document)
        return
    _print_plans(document, explain)
    if picture is not None:
        say(f"{picture}: written")


def _check_options(unlimited: bool, twice: bool) -> None:
    if unlimited:
        raise typer.BadParameter("give --budget, --weights, --ring, --delay or --frontier")
    if twice:
        raise typer.BadParameter("give --delay or --deadline")


def _check_pictures(packs: list[Path], show_frontier: bool, picture: Path | None) -> None:
    if (show_frontier or picture) and len(packs) != 1:
        raise typer.BadParameter("--frontier and --picture are of one pack")
    if picture is not None and picture.suffix != ".svg":
        raise typer.BadParameter(f"{picture}: not F.svg", param_hint="--picture")


def _frontier(
    candidate: Candidate, resident: Architecture, picture: Path | None, as_json: bool
) -> None:
    pack, wanted = candidate.pack, Wanted(thorough=candidate.wanted.thorough)
    with working("planning"):
        points = frontier(
            pack.manifest, candidate.architecture, resident, candidate.profile, wanted
        )
    rows = frontier_rows(points)
    if picture is not None:
        curve = [(row["total_bytes"], row["delay_ms"]) for row in rows]
        estimated = any(row["estimated"] for row in rows)
        write_picture(picture, frontier_picture(pack.name, curve, estimated))
    if as_json:
        print_json({"model": pack.name, "frontier": rows})
        return
    print_frontier(pack.name, rows)
    if picture is not None:
        say(f"{picture}: written")


def write_picture(path: Path, text: str) -> None:
    """Write ``text``.

    Raises:
        InputError: it cannot be written.
    """
    try:
        path.write_text(text, "utf-8")
    except OSError as exc:
        raise InputError(f"{path}: {exc.strerror or exc}") from exc


def _profiled_or_hint(pack: Pack, device: Device, needed: bool) -> tuple[Pack, Profile | None, str]:
    """Return ``pack`` as ``device`` runs it and its profile, or None and what to do.

    Raises:
        ProfileError: there is none, and it is needed.
    """
    try:
        return *profiled(pack, device), ""
    except ProfileError as exc:
        if needed:
            raise
        return device.fitted(pack), None, str(exc)


def _planned(candidate: Candidate, fitted: Fitted, hint: str) -> dict[str, Any]:
    profile = candidate.profile
    expected = None if profile is None else predict(fitted.plan, profile)
    return {
        "model": candidate.pack.name,
        "architecture": candidate.architecture.name,
        **memory_of(fitted.plan),
        "ring_bytes": fitted.plan.ring_bytes,
        "resident_bytes": fitted.plan.resident_bytes,
        "delay_ms": None if expected is None else expected.delay_seconds * 1e3,
        "stall_ms": None if expected is None else expected.simulated.stall_seconds * 1e3,
        "bound_ms": None if expected is None else expected.bound_ms,
        "hint": hint,
        "reasons": [*fitted.reasons, *_on_rows(candidate, fitted)],
        "regions": [asdict(region) for region in fitted.plan.choice.regions],
    }


def _on_rows(candidate: Candidate, fitted: Fitted) -> list[str]:
    """Return what runs on rows, in words."""
    profile, plan = candidate.profile, fitted.plan
    seconds = None if profile is None else profile.durations(plan).stages[-1]
    return list(explain_regions(candidate.pack.manifest, plan, seconds))


def _document(
    budget_bytes: int | None, shared: Budget, in_turns: bool, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return rows and totals; times add up to one request of each, one after the other.

    ``shared``: what all hold together. Of what models use ``in_turns`` the largest counts: rows add up to
    ``saved_bytes`` more than the total.
    """
    totals = {part: sum(row[part] for row in rows) for part in ("total_bytes", *PARTS)}
    if in_turns:
        for part in (f"{kind}_bytes" for kind in SHARED_KINDS):
            totals[part] = max(row[part] for row in rows)
        totals["total_bytes"] = sum(totals[part] for part in PARTS)
    times = {
        name: None if any(row[name] is None for row in rows) else sum(row[name] for row in rows)
        for name in ("delay_ms", "bound_ms")
    }
    return {
        "budget_bytes": budget_bytes,
        "request_bytes": shared.request_bytes,
        "in_turns": in_turns,
        "saved_bytes": sum(row["total_bytes"] for row in rows) - totals["total_bytes"],
        **totals,
        **times,
        "packs": rows,
    }


def _print_plans(document: dict[str, Any], explain: bool) -> None:
    rows = document["packs"]
    shown = [*rows, {"model": "total", "architecture": "", **document}] if len(rows) > 1 else rows
    unit = unit_of_rows(shown, "total_bytes")
    print_table(
        "Plan",
        ("model", "architecture", unit.head("memory"), "delay ms", "bound ms"),
        (
            (
                row["model"],
                row["architecture"],
                unit.show(row["total_bytes"]),
                *(number(row[name]) for name in ("delay_ms", "bound_ms")),
            )
            for row in shown
        ),
    )
    print_table(
        f"Its memory in {unit.name}",
        ("model", *_PART_HEADS),
        ((row["model"], *(unit.show(row[part]) for part in PARTS)) for row in shown),
    )
    if document["budget_bytes"] is not None:
        say(shares(document["budget_bytes"], document["total_bytes"], document["request_bytes"]))
    if document["in_turns"]:
        saved = MIB.show(document["saved_bytes"])
        say(f"They compute in turns, in the activations of the largest: {saved} MiB less.")
    for row in rows:
        notes = [row["hint"]] if row["hint"] else []
        for note in [*notes, *(row["reasons"] if explain else [])]:
            say(f"{row['model']}: {note}")
