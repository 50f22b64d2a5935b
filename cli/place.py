"""``layerstream place``: which models on which nodes, by what their plans need."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.arguments import DeviceName, Json, Threads, open_named
from cli.placement.place import check_solver, place_again
from cli.placement.place import place as placed
from cli.placement.problem import Model, Placement, PlacementProblem, Replica, moves, nodes_of
from cli.placement.reading import Needs, PlacementFileError, read_models, read_nodes
from cli.printing.output import print_json, print_table, say, write_text
from cli.printing.sentences import counted
from cli.printing.steps import planning
from models.packs.pack import open_pack
from pipeline.budget.request_needs import Need, smallest_budgets
from pipeline.devices.base import Device
from pipeline.fitting.trade_off import frontier
from pipeline.planning.plan import PlanError
from pipeline.profiles.found_plans_file import plans_of
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile import ProfileError
from pipeline.profiles.profile_file import load_profile
from pipeline.program.prepare import prepare
from pipeline.schedule.architectures import ARCHITECTURES
from server.errors import few
from server.memory.process_memory import process_bytes

# More rows are for programs.
_ROWS = 40
_MIB = 1 << 20


def place(
    context: typer.Context,
    models: Annotated[Path, typer.Argument(help="What is to be served: MODELS.toml.")],
    nodes: Annotated[Path, typer.Argument(help="On which machines: NODES.toml.")],
    previous: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A placement (--json) that is to change little."),
    ] = None,
    busy: Annotated[
        float,
        typer.Option(min=0.01, max=1.0, help="Share of a node's time that may be used."),
    ] = 0.8,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the JSON there.")
    ] = None,
    device_name: DeviceName = "cpu",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Say which models go on which nodes. They go on few, or with few moves from a previous placement.

    A pack of MODELS.toml is planned here, as `plan` does; delays are of this machine, of which a node has
    --speed times as much. Needs SciPy (extra place).
    """
    check_solver()
    device = open_named(context, device_name, threads)
    wanted = read_models(models, partial(_planned, device))
    own, each = process_bytes(0), process_bytes(1) - process_bytes(0)
    wanted = [_with_own(model, each) for model in wanted]
    problem = PlacementProblem(wanted, read_nodes(nodes, own, each, busy))
    before = None if previous is None else _read_placement(previous, problem)
    placement = placed(problem) if before is None else place_again(problem, before)
    document = _document(problem, placement, before)
    if output is not None:
        write_text(output, json.dumps(document, indent=2) + "\n")
    if as_json:
        print_json(document)
        return
    _print(document)
    if output is not None:
        say(f"{output}: written")


def _with_own(model: Model, own_bytes: int) -> Model:
    """Return ``model`` with the memory that a server takes for it beside its budget."""
    return replace(model, need_bytes=model.need_bytes + own_bytes)


def _planned(device: Device, folder: Path, delay: float | None) -> Needs:
    """Return what the pack in ``folder`` needs at least to answer within ``delay``; None: at all.

    Raises:
        ModelError: it cannot be opened, or no plan answers in so little time.
    """
    with planning():
        pack = open_pack(folder, device.target)
        try:
            profile = load_profile(pack, this_machine(pack.weights_path, device))
            device.tune(profile.tuning)
        except ProfileError:
            profile = None
        program, known = prepare(pack, device), plans_of(pack)
        points = frontier(
            *(program, device.adapt(ARCHITECTURES["auto"]), device.adapt(ARCHITECTURES["pre"])),
            *(profile, known),
        )
        known.save()
    fast = [point for point in points if delay is None or point.seconds <= delay]
    if not fast:
        best = min(point.seconds for point in points)
        raise PlanError(f"no plan answers in that time here; the fastest takes {best * 1e3:.3g} ms")
    plan = fast[0].plan
    budget = smallest_budgets(plan.total_bytes, [Need.of(pack.manifest)]).full_bytes
    return Needs(budget, fast[0].seconds, float(plan.read_bytes))


def _document(
    problem: PlacementProblem, placement: Placement, before: Placement | None
) -> dict[str, Any]:
    """Return the document of --json, whose ``replicas`` --previous reads."""
    used = nodes_of(placement)
    document: dict[str, Any] = {
        "nodes": len(problem.nodes),
        "used_nodes": len(used),
        "models": [
            {
                "model": model.name,
                "need_bytes": model.need_bytes,
                "seconds": model.seconds,
                "requests": model.requests,
                "replicas": sum(each.model == number for each in placement),
            }
            for number, model in enumerate(problem.models)
        ],
        "replicas": [
            {
                "model": problem.models[each.model].name,
                "node": problem.nodes[each.node].name,
                "requests": each.requests,
            }
            for each in sorted(placement, key=lambda each: (each.node, each.model))
        ],
        "moves": None,
    }
    if before is not None:
        moved = moves(before, placement)
        document["moves"] = {problem.models[model].name: count for model, count in moved.items()}
    return document


def _read_placement(path: Path, problem: PlacementProblem) -> list[Replica]:
    """Return what the file ``path`` says of models and nodes that there are still.

    Raises:
        PlacementFileError: it cannot be read, or is no placement.
    """
    try:
        document = json.loads(path.read_text("utf-8"))
        replicas = [
            (each["model"], each["node"], float(each["requests"])) for each in document["replicas"]
        ]
    except OSError as exc:
        raise PlacementFileError(f"{path}: {exc.strerror or exc}") from exc
    except (ValueError, KeyError, TypeError) as exc:
        raise PlacementFileError(f"{path}: not what `place --json` has written") from exc
    models = {model.name: number for number, model in enumerate(problem.models)}
    nodes = {node.name: number for number, node in enumerate(problem.nodes)}
    requests_at = {
        (models[model], nodes[node]): requests
        for model, node, requests in replicas
        if model in models and node in nodes and 0 <= requests < float("inf")
    }
    return [Replica(model, node, requests) for (model, node), requests in requests_at.items()]


def _print(document: dict[str, Any]) -> None:
    rows: Sequence[dict[str, Any]] = document["models"]
    print_table(
        f"{len(rows):,} models on {document['used_nodes']:,} of {document['nodes']:,} nodes",
        ("model", "needs MiB", "ms", "requests/s", "replicas", "nodes"),
        (
            (
                row["model"],
                f"{row['need_bytes'] / _MIB:.1f}",
                f"{row['seconds'] * 1e3:.3g}",
                f"{row['requests']:.4g}",
                str(row["replicas"]),
                _few_nodes(document, row["model"]),
            )
            for row in rows[:_ROWS]
        ),
    )
    if len(rows) > _ROWS:
        say(f"and {len(rows) - _ROWS:,} more models; --json has all")
    if document["moves"] is not None:
        count = sum(document["moves"].values())
        models = counted(len(document["moves"]), "model")
        say(f"loaded where they were not: {counted(count, 'replica')} of {models}")


def _few_nodes(document: dict[str, Any], model: str) -> str:
    return few([each["node"] for each in document["replicas"] if each["model"] == model])
