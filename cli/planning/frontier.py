"""What ``plan --frontier`` prints: memory against delay of one pack."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cli.arguments.predicted import memory_of
from cli.printing.figures import number, unit_of_rows
from cli.printing.output import print_table, say
from pipeline.fitting.trade_off import FrontierPoint

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
