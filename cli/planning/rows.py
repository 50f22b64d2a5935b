"""What ``plan`` says of packs that share a budget: the document of --json, and the tables."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cli.arguments.predicted import PARTS, memory_of
from cli.printing.figures import MIB, number, unit_of_rows
from cli.printing.output import print_table, say
from cli.printing.sentences import shares
from pipeline.execution.leases import SHARED_KINDS
from pipeline.fitting.wanted import Fitted
from pipeline.planning.explain import explain_regions
from pipeline.planning.plan import PipelinePlan, Plan
from server.memory.candidates import Candidate
from server.settings.sizes import format_least

#: What PARTS are called where people read.
_PART_HEADS = ("weights", "activations", "scratch", "sessions", "objects", "tensors")


def planned(candidate: Candidate, fitted: Fitted, hint: str, kept: bool) -> dict[str, Any]:
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
        "ring_bytes": fitted.plan.ring_bytes,
        "resident_bytes": fitted.plan.resident_bytes,
        "delay_ms": None if expected is None else expected.delay_ms,
        "stall_ms": None if expected is None else expected.stall_ms,
        "bound_ms": None if expected is None else expected.bound_ms,
        "search": ("thorough" if fitted.thorough else "quick") if is_searched else None,
        "kept": bool(is_searched and kept),
        "hint": hint,
        "reasons": [*fitted.reasons, *_on_rows(candidate, fitted)],
        "regions": [asdict(region) for region in fitted.plan.choice.regions],
        **_partitions(fitted.plan),
    }


def _partitions(plan: Plan) -> dict[str, Any]:
    """Return what partitions take that compute at once, and what crosses between them."""
    if not isinstance(plan, PipelinePlan):
        return {"workers": 1, "edge_bytes": 0, "partitions": []}
    held = [
        {**memory_of(part), "regions": [asdict(region) for region in part.choice.regions]}
        for part in plan.partitions
    ]
    return {"workers": len(held), "edge_bytes": plan.edge_bytes, "partitions": held}


def _on_rows(candidate: Candidate, fitted: Fitted) -> list[str]:
    """Return what runs on rows, in words."""
    profile, plan = candidate.profile, fitted.plan
    if isinstance(plan, PipelinePlan):
        return []
    seconds = None if profile is None else profile.durations(plan).stages[-1]
    return list(explain_regions(candidate.program, plan, seconds))


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
    print_table(
        f"Its memory in {unit.name}",
        ("model", *_PART_HEADS),
        ((row["model"], *(unit.show(row[part]) for part in PARTS)) for row in shown),
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
            _search(row),
        ):
            if note:
                say(f"{row['model']}: {note}")


def _search(row: dict[str, Any]) -> str:
    """Return whether others have the same plan; empty where they search just so."""
    if row["search"] != "thorough":
        return ""
    if row["kept"]:
        return "kept in plans.json; run and serve take this plan where they are asked the same"
    return (
        "searched thoroughly, and not kept, as plans.json cannot be written beside the pack; run and "
        "serve search quickly and may take another plan, as --quick shows"
    )
