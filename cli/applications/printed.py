"""What ``layerstream app`` prints: one table of all ways, buffers, schedules, the frontier."""

from collections.abc import Mapping, Sequence
from typing import Any

from cli.printing.figures import number
from cli.printing.output import print_table, say

_MB = 1e6
_SMALL = 1e5
#: What the ways are called where people read.
WAYS = {
    "naive": "naive",
    "reuse": "reuse (Algorithm 1)",
    "greedy-by-size": "greedy-by-size",
    "parts": "parts, all by one row",
    "algorithm-2": "Algorithm 2",
    "chromosome": "chromosome",
    "ours": "ours",
    "ours-streaming": "ours, streaming",
}


def print_application(document: Mapping[str, Any]) -> None:
    """Print the table of all ways, and the schedule of the search's solution where it is short."""
    rows = document["ways"]
    unit = _unit(rows)
    print_table(
        f"{document['application']}: memory",
        ("way", f"memory {unit[1]}", "delay ms", "of it weights", "activations"),
        (
            (
                WAYS[row["way"]],
                _shown(row["memory_bytes"], unit),
                number(row["delay_ms"]),
                _shown(row.get("weight_bytes", row.get("parameter_bytes")), unit),
                _shown(row.get("arena_bytes", row.get("buffer_bytes")), unit),
            )
            for row in rows
        ),
    )
    for row in rows:
        if row["way"] in ("reuse", "chromosome") and unit[1] == "bytes":
            print_buffers(row)
    for row in rows:
        if row["way"] == "chromosome":
            _print_schedules(row)
    for hint in document["hints"]:
        say(hint)


def print_buffers(row: Mapping[str, Any]) -> None:
    """Print which edges each buffer holds."""
    print_table(
        f"{WAYS[row['way']]}: buffers of {row['buffer_elements']:,} elements",
        ("buffer", "size", "edges"),
        (
            (f"B{place}", f"{buffer['size']:,}", ", ".join(buffer["edges"]))
            for place, buffer in enumerate(row["buffers"], 1)
        ),
    )


def _print_schedules(row: Mapping[str, Any]) -> None:
    for place, schedule in enumerate(row["schedules"], 1):
        steps = ", ".join(
            f"[{' '.join(step['layers'])}]" + (f" x {step['times']}" if step["times"] > 1 else "")
            for step in schedule["steps"]
        )
        say(f"P{place} ({schedule['model']}): {steps}")


def print_frontier(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print memory against delay: of each way what none of the same beats."""
    unit = _unit(rows)
    rows = _unbeaten(rows)
    print_table(
        title,
        ("way", f"memory {unit[1]}", "delay ms"),
        (
            (WAYS[row["way"]], _shown(row["memory_bytes"], unit), number(row["delay_ms"]))
            for row in rows
        ),
    )


def _unbeaten(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows that no smaller one of the same way beats."""
    kept: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row["memory_bytes"], row["delay_ms"])):
        own = kept.setdefault(row["way"], [])
        if not own or row["delay_ms"] < own[-1]["delay_ms"]:
            own.append(row)
    return [row for own in kept.values() for row in own]


def _unit(rows: Sequence[Mapping[str, Any]]) -> tuple[float, str]:
    return (_MB, "MB") if max(row["memory_bytes"] for row in rows) >= _SMALL else (1.0, "bytes")


def _shown(value: float | None, unit: tuple[float, str]) -> str:
    if value is None:
        return "-"
    return f"{value / unit[0]:.2f}" if unit[0] > 1 else f"{value:,}"
