"""``layerstream plan``: what packs would take of a budget, and how long they would take."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import arguments
from cli.arguments import (
    ActivationsOption,
    ArchitectureName,
    Arena,
    DeviceName,
    Json,
    Recompile,
    RequestMemory,
    Ring,
    Threads,
    Weights,
    architecture,
    open_named,
    profiled,
    size,
    weight_bytes,
)
from cli.planning import (
    check_models,
    deadlines_of,
    document_of,
    frontier_rows,
    planned,
    print_frontier,
    print_plans,
    seconds_of,
    workers_by_model,
)
from cli.plots.plans import arena_picture, frontier_picture
from cli.printing.output import print_json, say, warn, write_text
from cli.printing.plan_tables import plan_documents, print_plan_tables
from cli.printing.sentences import typed
from cli.printing.steps import planning
from models.packs.pack import Pack, open_pack
from pipeline.budget.budget import Budget, check_requests
from pipeline.budget.candidates import Candidate, needed_by_all, share_served
from pipeline.budget.errors import RefusedError
from pipeline.budget.request_needs import Need
from pipeline.budget.sharing import Activations, possible
from pipeline.devices.base import Device
from pipeline.fitting.fit import fit
from pipeline.fitting.trade_off import frontier
from pipeline.fitting.wanted import PlanResult, Wanted
from pipeline.profiles.profile import Profile, ProfileError
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES, Architecture
from server.memory.process_memory import budget_within, process_bytes
from server.settings.per_model import has_several, of_model

_MIB = 1 << 20
#: Of /tmp in deploy/kubernetes and deploy/kserve.
_TMP_MIB = 64


def plan(
    context: typer.Context,
    packs: Annotated[list[Path], typer.Argument(help="Packs that share the budget.")],
    budget: arguments.Budget = None,
    memory: arguments.Memory = None,
    grpc_port: arguments.GrpcPort = None,
    request_memory: RequestMemory = None,
    activations: ActivationsOption = "auto",
    delay: Annotated[
        str | None, typer.Option(help="Least memory that answers in so long, e.g. 800ms.")
    ] = None,
    weights: Weights = None,
    ring: Ring = None,
    arena: Arena = None,
    architecture_name: ArchitectureName = "auto",
    deadline: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL=TIME", help="The same of one model, by its bound, e.g. resnet50=50ms."
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(metavar="[MODEL=]NUMBER", help="Partitions that compute at once, as serve."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why, in words, and print the plan as tables.")
    ] = False,
    show_frontier: Annotated[
        bool,
        typer.Option("--frontier", help="Memory against delay of one pack, whatever the limits."),
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(help="Draw one pack's arena over time, or its frontier: F.svg."),
    ] = None,
    resources: Annotated[
        bool,
        typer.Option("--resources", help="What a container that serves them asks of Kubernetes."),
    ] = False,
    device_name: DeviceName = "cpu",
    recompile: Recompile = False,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Plan packs within a budget: memory and delay. With a profile delays have a bound."""
    chosen = architecture(architecture_name)
    if memory is not None and (budget is not None or device_name != "cpu"):
        raise typer.BadParameter("give --budget or, for --device cpu, --memory")
    budget_bytes, memory_bytes = size(budget, "--budget"), size(memory, "--memory")
    target = seconds_of(delay)
    limits = (budget_bytes, memory_bytes, weights, delay, ring, arena)
    unlimited = all(limit is None for limit in limits) and not (deadline or show_frontier)
    known = device_name == "cpu" and (budget_bytes or memory_bytes)
    _check_options(unlimited, delay is not None and bool(deadline), resources and not known)
    _check_pictures(packs, show_frontier, picture)
    parted = workers_by_model(workers, (weights, delay, ring, deadline, picture), show_frontier)
    device = open_named(context, device_name, 1 if has_several(parted) else threads)
    opened_packs = [open_pack(path, device.target, recompile) for path in packs]
    check_models(parted, [pack.name for pack in opened_packs])
    deadlines = deadlines_of(deadline or (), [pack.name for pack in opened_packs])
    candidates, hints = [], []
    for compiled in opened_packs:
        wanted = Wanted(
            weight_bytes=weight_bytes(weights, compiled.manifest),
            ring_bytes=size(ring, "--ring"),
            arena_bytes=size(arena, "--arena"),
            delay_seconds=deadlines.get(compiled.name, target),
            guaranteed=compiled.name in deadlines,
        )
        needed = wanted.delay_seconds is not None
        opened, profile, hint = _profiled_or_hint(compiled, device, needed)
        candidates.append(
            Candidate(
                *(opened, device.adapt(chosen), wanted, profile),
                of_model(parted, compiled.name, 1),
            )
        )
        hints.append(hint)
    if show_frontier:
        _frontier(candidates[0], device.adapt(ARCHITECTURES["pre"]), picture, as_json)
        return
    base = process_bytes(len(packs), grpc=grpc_port is not None)
    with planning(), _saying_what_suffices(candidates, memory_bytes, base, activations):
        if memory_bytes is not None:
            budget_bytes = budget_within(memory_bytes, len(packs), grpc=grpc_port is not None)
        if budget_bytes is None:  # nothing to share: no service has none
            request_bytes, in_turns = 0, False
            plans: list[PlanResult] = [fit(*candidate.question) for candidate in candidates]
        else:
            shared = Budget(budget_bytes)
            activations, why = possible(device, activations, budget_bytes)
            if why:
                warn(why)
            requests = size(request_memory, "--request-memory")
            shares = share_served(candidates, shared, requests, activations)
            request_bytes, in_turns, plans = shared.request_bytes, shares.in_turns, shares.plans()
            _warn_of_requests(candidates, shared)
    rows = [
        planned(candidate, item, hint, candidate.known.save())
        for candidate, item, hint in zip(candidates, plans, hints, strict=True)
    ]
    if picture is not None:
        first = candidates[0].program
        write_text(picture, arena_picture(first.name, first, plans[0].plan))
    whole = budget_bytes if device_name == "cpu" else None
    document = {
        **document_of(budget_bytes, request_bytes, in_turns, rows),
        "memory_bytes": whole and whole + base,
    }
    if resources:
        _print_resources(opened_packs, document["memory_bytes"], device.threads)
    else:
        _print(document, zip(candidates if explain else (), plans, strict=False), picture, as_json)


@contextlib.contextmanager
def _saying_what_suffices(
    candidates: Sequence[Candidate],
    memory_bytes: int | None,
    base: int,
    activations: Activations,
) -> Iterator[None]:
    """Have a refusal say which memory for all of a process is enough, where that is what was given.

    ``base``: of the process beside its budget.
    """
    try:
        yield
    except RefusedError as exc:
        if memory_bytes is not None:
            enough = needed_by_all(candidates, activations) + base
            exc.args = (f"{exc}; --memory {typed(enough)} suffices for all",)
        raise


def _print(
    document: dict[str, Any],
    explained: Iterable[tuple[Candidate, PlanResult]],
    picture: Path | None,
    as_json: bool,
) -> None:
    """Print ``document``; the plans that are to be ``explained`` in words and tables, or as JSON."""
    plans = list(explained)
    if as_json:
        documents = [plan_documents(result.plan) for _, result in plans]
        print_json({**document, "plans": documents} if plans else document)
        return
    print_plans(document, explain=bool(plans))
    for candidate, result in plans:
        print_plan_tables(candidate.program, result.plan)
    if picture is not None:
        say(f"{picture}: written")


def _print_resources(packs: list[Pack], memory_bytes: int, threads: int) -> None:
    """Print the resources of a container that serves ``packs``, as YAML.

    Storage is what packs take where they are copied for each container; it has no limit, since the log of
    a container counts, too.
    """
    files = (file for pack in packs for file in pack.folder.rglob("*") if file.is_file())
    stored = sum(file.stat().st_size for file in files)
    memory = f"    memory: {-(-memory_bytes // _MIB)}Mi"
    storage = f"    ephemeral-storage: {-(-stored // _MIB) + _TMP_MIB}Mi"
    asked = ["resources:", "  requests:", f'    cpu: "{threads}"', memory, storage]
    typer.echo("\n".join([*asked, "  limits:", memory]))


def _warn_of_requests(candidates: list[Candidate], shared: Budget) -> None:
    """Say what a service could not answer within `--request-memory`."""
    for each in candidates:
        try:
            check_requests(each.program.name, Need.of(each.program.pack.manifest), shared)
        except RefusedError as exc:
            warn(f"not served so: {exc}")


def _check_options(unlimited: bool, twice: bool, unknown: bool) -> None:
    if unlimited:
        raise typer.BadParameter(
            "give --budget, --memory, --weights, --ring, --arena, --delay, --deadline or --frontier"
        )
    if twice:
        raise typer.BadParameter("give --delay or --deadline")
    if unknown:
        raise typer.BadParameter("--resources: give --budget or --memory, for --device cpu")


def _check_pictures(packs: list[Path], show_frontier: bool, picture: Path | None) -> None:
    if (show_frontier or picture) and len(packs) != 1:
        raise typer.BadParameter("--frontier and --picture are of one pack")
    if picture is not None and picture.suffix != ".svg":
        raise typer.BadParameter(f"{picture}: not F.svg", param_hint="--picture")


def _frontier(
    candidate: Candidate, resident: Architecture, picture: Path | None, as_json: bool
) -> None:
    program, asked = candidate.program, candidate.architecture
    with planning():
        points = frontier(program, asked, resident, candidate.profile, candidate.known)
        candidate.known.save()
    rows = frontier_rows(points)
    if picture is not None:
        curve = [(row["total_bytes"], row["delay_ms"]) for row in rows]
        estimated = any(row["estimated"] for row in rows)
        write_text(picture, frontier_picture(program.name, curve, estimated))
    if as_json:
        print_json({"model": program.name, "frontier": rows})
        return
    print_frontier(program.name, rows)
    if picture is not None:
        say(f"{picture}: written")


def _profiled_or_hint(
    pack: Pack, device: Device, needed: bool
) -> tuple[Program, Profile | None, str]:
    """Return ``pack`` as ``device`` runs it and its profile, or None and what to do.

    Raises:
        ProfileError: there is none, and it is needed.
    """
    try:
        return *profiled(pack, device), ""
    except ProfileError as exc:
        if needed:
            raise
        return prepare(pack, device), None, str(exc)
