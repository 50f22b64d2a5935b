"""``layerstream list``: the models of a repository, and which of them a budget would serve."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import arguments
from cli.arguments import (
    ActivationsOption,
    DeviceName,
    Json,
    Names,
    Pins,
    RequestMemory,
    Threads,
    open_named,
    pins_of,
    size,
)
from cli.printing.output import print_json, print_table, say, suggest, warn
from cli.printing.sentences import command, less_for_pictures, shares, typed
from cli.printing.steps import planning
from cli.printing.tables import MIB
from models.errors import PackError
from models.packs.folders import find_pack
from pipeline.budget.budget import Budget
from pipeline.budget.sharing import possible
from server.errors import few
from server.repository.survey import FoundModel, Verdict, judge, needed_for_all, survey
from server.settings.groups import split_names

_COLUMNS = ("model", "versions", MIB.head("weights"), MIB.head("needs"))


def list_(
    context: typer.Context,
    repository: Annotated[Path, typer.Argument(help="A folder of packs: NAME/VERSION.")],
    budget: arguments.Budget = None,
    request_memory: RequestMemory = None,
    activations: ActivationsOption = "auto",
    models: Names = None,
    pin: Pins = None,
    device_name: DeviceName = "cpu",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """List the models of a repository, and which would fit.

    --budget, --request-memory, --activations, --models and --pin are those of `serve`.
    """
    budget_bytes = size(budget, "--budget")
    request_bytes = size(request_memory, "--request-memory")
    device = open_named(context, device_name, threads)
    chosen = split_names(",".join(models or ()))
    with planning():
        surveyed = survey(repository, device, chosen, pins_of(pin))
    activations, why = possible(device, activations, budget_bytes)
    if why:
        warn(why)
    shared = None if budget_bytes is None else Budget(budget_bytes)
    verdicts = [Verdict()] * len(surveyed)
    if shared is not None:
        with planning():
            verdicts = judge(surveyed, shared, device, request_bytes, activations)
    for model in surveyed:
        model.known.save()
    document = {
        "repository": str(repository),
        "all_bytes": needed_for_all(surveyed, activations),
        "budget_bytes": budget_bytes,
        "request_bytes": shared and shared.request_bytes,
        "models_bytes": shared and shared.used_bytes - shared.request_bytes,
        "activations": activations,
        "chosen": list(chosen),
        "pin": list(pin or ()),
        "models": [
            _row(model, verdict, shared) for model, verdict in zip(surveyed, verdicts, strict=True)
        ],
    }
    if as_json:
        print_json(document)
    else:
        _print(document)


def _row(model: FoundModel, verdict: Verdict, shared: Budget | None) -> dict[str, Any]:
    row = {
        "model": model.name,
        "versions": list(model.versions),
        "weight_bytes": model.program and model.program.weight_bytes,
        "smallest_budget_bytes": model.smallest_budget_bytes,
        "pictures_budget_bytes": model.pictures_budget_bytes,
        "profile": model.profile is not None,
        "profile_exact": model.profile is not None and model.profile.exact,
        "profile_error": model.profile_fault,
        "error": model.fault,
    }
    if shared is None:
        return row
    tensors = model.need is not None and model.need.full_bytes <= shared.request_bytes
    return row | {
        "served": verdict.is_served,
        "takes_tensors": verdict.is_served and tensors,
        "memory_bytes": verdict.memory_bytes,
        "missing_bytes": verdict.missing_bytes,
        "reason": verdict.reason,
    }


def _print(document: dict[str, Any]) -> None:
    rows, budget_bytes = document["models"], document["budget_bytes"]
    if not rows:
        say(f"{document['repository']}: no models in it{_hint(Path(document['repository']))}")
        return
    planned = (MIB.head("takes"), "served") if budget_bytes else ()
    print_table(
        f"{document['repository']}: a model needs a budget of so much to be served alone",
        (*_COLUMNS, *planned, "profile"),
        map(_cells, rows),
    )
    for note in (note for row in rows for note in _notes(row)):
        say(note)
    _print_shares(document)


def _hint(folder: Path) -> str:
    """Return a hint at the repository of ``folder`` if that is a model in one, or a version."""
    try:
        pack = find_pack(folder).resolve()
    except (PackError, OSError):
        return ""
    return f"; it is a model, its repository is {pack.parents[1]}"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    planned = (MIB.show(row["memory_bytes"]), _served(row)) if "served" in row else ()
    return (
        row["model"],
        few(row["versions"][::-1]),
        MIB.show(row["weight_bytes"]),
        MIB.show_least(row["smallest_budget_bytes"]),
        *planned,
        _profile(row),
    )


def _served(row: dict[str, Any]) -> str:
    if not row["served"]:
        return "no"
    return "yes" if row["takes_tensors"] else "photographs"


def _notes(row: dict[str, Any]) -> Iterator[str]:
    """Yield why a model cannot be read or is not served, or what less memory is for, and of its profile."""
    if row["error"]:
        yield f"{row['model']}: {row['error']}"
    elif row.get("reason"):
        named = f"model {row['model']!r}"
        yield (
            row["reason"] if row["reason"].startswith(named) else f"{row['model']}: {row['reason']}"
        )
    elif less := less_for_pictures(row):
        yield f"{row['model']}: {less.removeprefix('; ')}"
    if row["profile_error"]:
        yield f"{row['model']}: {row['profile_error']}"


def _profile(row: dict[str, Any]) -> str:
    if row["error"]:
        return "-"
    if row["profile"]:
        return "yes" if row["profile_exact"] else "no bound"
    return "unusable" if row["profile_error"] else "none"


def _print_shares(document: dict[str, Any]) -> None:
    rows, budget_bytes = document["models"], document["budget_bytes"]
    if budget_bytes is not None:
        say(shares(budget_bytes, document["models_bytes"], document["request_bytes"]))
    if any(not row["error"] for row in rows):
        least = typed(document["all_bytes"])
        chosen = ("--models", ",".join(document["chosen"])) if document["chosen"] else ()
        pin = ("--pin", ",".join(document["pin"])) if document["pin"] else ()
        turns = (
            () if document["activations"] == "auto" else ("--activations", document["activations"])
        )
        serve = command(
            *("serve", "--repository", document["repository"], *chosen, *pin, *turns),
            *("--budget", least),
        )
        suggest("To serve all that can be read", serve)
