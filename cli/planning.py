"""What ``layerstream plan`` does beside plans: deadlines, workers, documents and tables, the frontier."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import typer

from cli.arguments import PARTS, memory_of
from cli.printing.output import print_table, say
from cli.printing.sentences import shares
from cli.printing.tables import MIB, number, unit_of_rows
from models.sizes import format_least
from pipeline.budget.candidates import Candidate
from pipeline.execution.leases import SHARED_KINDS
from pipeline.fitting.predicting import Predictions
from pipeline.fitting.trade_off import FrontierPoint
from pipeline.fitting.wanted import PlanResult
from pipeline.planning.explain import explain_regions
from pipeline.planning.plan import AnyPlan, PartitionedPlan
from pipeline.planning.words import milliseconds
from server.settings.per_model import ALL, MOST_WORKERS, has_several, parse_per_model, whole

# Delays that ``plan`` is asked for: one for all packs, or one a model.

_DELAY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s)")


def seconds_of(text: str | None, option: str = "--delay") -> float | None:
    """Return the seconds of 800ms or 1.5s; None stays None.

    Raises:
        typer.BadParameter: it is not a time above 0.
    """
    if text is None:
        return None
    match = _DELAY.fullmatch(text.strip())
    seconds = float(match[1]) * (1e-3 if match[2] == "ms" else 1.0) if match else 0.0
    if not seconds or math.isinf(seconds):
        raise typer.BadParameter(
            f"{text[:40]!r} is not a time; write 800ms or 1.5s", param_hint=option
        )
    return seconds


def deadlines_of(texts: Sequence[str], models: Sequence[str]) -> dict[str, float]:
    """Return the seconds of each of MODEL=50ms.

    Raises:
        typer.BadParameter: one is not of that form, names no model of ``models``, or contradicts another.
    """
    deadlines: dict[str, float] = {}
    for text in texts:
        name, equals, time = text.partition("=")
        seconds = seconds_of(time, "--deadline") if equals else None
        if seconds is None:
            raise typer.BadParameter(f"{text[:40]!r}: write MODEL=50ms", param_hint="--deadline")
        if name not in models:
            raise typer.BadParameter(
                f"{name[:40]!r} is none of the packs: {', '.join(sorted(set(models)))}",
                param_hint="--deadline",
            )
        if deadlines.setdefault(name, seconds) != seconds:
            raise typer.BadParameter(
                f"{name!r} has two: {milliseconds(deadlines[name])} and {milliseconds(seconds)}",
                param_hint="--deadline",
            )
    return deadlines


# How many workers ``plan`` gives to each pack.


def workers_by_model(
    text: str | None, limits: Sequence[object], show_frontier: bool
) -> dict[str, int]:
    """Return the numbers of [MODEL=]NUMBER; ``limits``: what may not be asked beside several.

    Raises:
        typer.BadParameter: it is not of that form, or the plan of partitions cannot be what is asked.
    """
    if text is None:
        return {}
    try:
        workers = parse_per_model(text, whole)
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint="--workers") from exc
    assert isinstance(workers, dict)
    if not all(1 <= number <= MOST_WORKERS for number in workers.values()):
        raise typer.BadParameter(f"from 1 to {MOST_WORKERS}", param_hint="--workers")
    if has_several(workers) and (show_frontier or any(limit is not None for limit in limits)):
        raise typer.BadParameter(
            "partitions are planned within --budget alone", param_hint="--workers"
        )
    return workers


def check_models(workers: Mapping[str, int], models: Collection[str]) -> None:
    """Refuse workers of what is none of ``models``.

    Raises:
        typer.BadParameter: there are some.
    """
    unknown = sorted(set(workers) - {ALL, *models})
    if unknown:
        raise typer.BadParameter(
            f"{unknown[0][:60]!r} is none of the packs: {', '.join(models)}", param_hint="--workers"
        )


# What ``plan`` says of packs that share a budget: the document of --json, and the tables.

#: What PARTS are called where people read.
_PART_HEADS = ("weights", "activations", "scratch", "sessions", "objects", "tokenizer", "tensors")


def planned(candidate: Candidate, fitted: PlanResult, hint: str, kept: bool) -> dict[str, Any]:
    """Return what is said of one plan; ``hint``: what to do about its profile. ``kept``: others find it."""
    expected = fitted.prediction
    is_searched = (
        candidate.architecture.tuned
        and candidate.wanted.ring_bytes is None
        and candidate.workers == 1
    )
    return {
        "model": candidate.program.name,
        "architecture": candidate.architecture.name,
        **memory_of(fitted.plan),
        "ring_bytes": fitted.plan.memory["ring"],
        "resident_bytes": fitted.plan.memory["resident"],
        "delay_ms": None if expected is None else expected.delay_ms,
        "stall_ms": None if expected is None else expected.stall_ms,
        "bound_ms": None if expected is None else expected.bound_ms,
        "measured": expected is not None and expected.measured,
        "kept": bool(is_searched and kept),
        "hint": hint,
        "reasons": [*fitted.reasons, *_on_rows(candidate, fitted)],
        "regions": [asdict(region) for region in fitted.plan.regions],
        **_partitions(fitted.plan),
    }


def _partitions(plan: AnyPlan) -> dict[str, Any]:
    """Return what partitions take that compute at once, and what crosses between them."""
    if not isinstance(plan, PartitionedPlan):
        return {"workers": 1, "edge_bytes": 0, "partitions": []}
    parts = [
        {**memory_of(part), "regions": [asdict(region) for region in part.choice.regions]}
        for part in plan.partitions
    ]
    return {"workers": len(parts), "edge_bytes": plan.edge_bytes, "partitions": parts}


def _on_rows(candidate: Candidate, fitted: PlanResult) -> list[str]:
    """Return what runs on rows, in words."""
    profile, plan = candidate.profile, fitted.plan
    if isinstance(plan, PartitionedPlan):
        return []
    estimates = Predictions.of(candidate.program, profile).estimates
    return list(explain_regions(plan, None if profile is None else list(estimates.kernels(plan))))


def document_of(
    budget_bytes: int | None, request_bytes: int, in_turns: bool, rows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return rows and totals; times add up to one request of each, one after the other.

    ``request_bytes``: set aside for requests. Of what models use ``in_turns`` the largest counts: rows add
    up to ``saved_bytes`` more than the total.
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
        "request_bytes": request_bytes,
        "in_turns": in_turns,
        "saved_bytes": sum(row["total_bytes"] for row in rows) - totals["total_bytes"],
        **totals,
        **times,
        "packs": list(rows),
    }


def print_plans(document: dict[str, Any], explain: bool) -> None:
    """Print the plans, how they share the budget, and what there is to say of each."""
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
    columns = dict(zip(PARTS, _PART_HEADS, strict=True))
    if not any(row["tokenizer_bytes"] for row in shown):
        del columns["tokenizer_bytes"]
    print_table(
        f"Its memory in {unit.name}",
        ("model", *columns.values()),
        ((row["model"], *(unit.show(row[part]) for part in columns)) for row in shown),
    )
    if document["budget_bytes"] is not None:
        say(shares(document["budget_bytes"], document["total_bytes"], document["request_bytes"]))
    if document["memory_bytes"] is not None:
        whole = format_least(document["memory_bytes"])
        say(f"A process that serves them in it takes up to {whole} (serve --memory).")
    if document["in_turns"]:
        saved = MIB.show(document["saved_bytes"])
        say(f"They compute in turns, in the activations of the largest: {saved} MiB less.")
    for row in rows:
        for note in (
            row["hint"],
            *(row["reasons"] if explain or row["workers"] > 1 else []),
        ):
            if note:
                say(f"{row['model']}: {note}")


# What ``plan --frontier`` prints: memory against delay of one pack.

_BAR = 40


def frontier_rows(points: Sequence[FrontierPoint]) -> list[dict[str, Any]]:
    """Return what JSON says of each point."""
    return [
        {
            **memory_of(point.plan),
            "architecture": point.plan.architecture.name,
            "delay_ms": point.seconds * 1e3,
            "estimated": point.estimated,
            "bound_ms": _ms(point.fitted.bound_seconds),
            "regions": [asdict(region) for region in point.plan.choice.regions],
        }
        for point in points
    ]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def print_frontier(name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print a row a plan, with a bar as long as its delay."""
    unit = unit_of_rows(rows, "total_bytes")
    most = max(row["delay_ms"] for row in rows) or 1.0  # a model without kernels takes no time
    print_table(
        f"{name}: memory against delay",
        (unit.head("memory"), unit.head("weights"), unit.head("arena"), "regions", "delay ms", ""),
        (
            (
                unit.show_least(row["total_bytes"]),
                unit.show(row["weight_bytes"]),
                unit.show(row["arena_bytes"]),
                str(len(row["regions"])),
                number(row["delay_ms"]),
                "#" * max(round(_BAR * row["delay_ms"] / most), 1),
            )
            for row in rows
        ),
    )
    if any(row["estimated"] for row in rows):
        say(f"{name}: delays are estimated, no profile was measured: run `layerstream profile`")
