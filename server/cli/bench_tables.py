"""What ``bench`` prints for people: the tables of seed 003 with our rows."""

from collections.abc import Sequence
from typing import Any

from server.cli.output import console, print_table
from server.sizes import format_size

# Tables of at most 80 columns: a terminal's.
_DELAYS = ("architecture", "weights", "of all", "ms", "p95", "to pre")
_MEMORY = ("architecture", "in chunks", "in layers", "arena", "read")
_CHECKS = ("architecture", "simulated", "bound", "stall", "CPU s", "error", "as pre")


def print_pipeline(result: dict[str, Any]) -> None:
    """Print one run of ``bench pipeline``: the paper's table, its memory equations, and our checks."""
    pixels = f" at {result['resolution']} px" if result["resolution"] else ""
    threads = result["machine"]["threads"]
    title = f"{result['model']}{pixels}, {result['iterations']} runs each, {threads} threads"
    rows = result["rows"]
    print_table(title, _DELAYS, (_delays(row) for row in rows))
    print_table("Memory equations; arena; read a sweep", _MEMORY, (_memory(row) for row in rows))
    print_table("Predictions and stalls (ms), checks", _CHECKS, (_checks(row) for row in rows))
    for note in result["notes"]:
        _say(note)
    for label, reasons in result["reasons"].items():
        for reason in reasons:
            _say(f"{label}: {reason}")
    _say(_energy(result))


def print_resolutions(result: dict[str, Any]) -> None:
    """Print one run of ``bench resolutions``: a row a resolution and architecture."""
    print_table(
        f"{result['model']}: resolutions",
        ("px", "architecture", "weights", "of all", "median ms", "to pre"),
        (
            (
                str(run["resolution"]),
                row["architecture"],
                format_size(row["weight_bytes"]),
                _percent(row["weight_percent"]),
                f"{row['delay_ms']['median']:.2f}",
                _change(row["ratio_to_pre"]),
            )
            for run in result["runs"]
            for row in run["rows"]
        ),
    )


def _delays(row: dict[str, Any]) -> Sequence[str]:
    delay = row["delay_ms"]
    return (
        row["architecture"],
        format_size(row["weight_bytes"]),
        _percent(row["weight_percent"]),
        f"{delay['median']:.2f}",
        f"{delay['p95']:.2f}",
        _change(row["ratio_to_pre"]),
    )


def _memory(row: dict[str, Any]) -> Sequence[str]:
    return (
        row["architecture"],
        _or_dash(row["equation_bytes"], format_size),
        _or_dash(row["equation_layer_bytes"], format_size),
        format_size(row["arena_bytes"]),
        format_size(row["read_bytes"]),
    )


def _checks(row: dict[str, Any]) -> Sequence[str]:
    return (
        row["architecture"],
        _or_dash(row["predicted_ms"], "{:.2f}".format),
        _or_dash(row["bound_ms"], "{:.2f}".format),
        f"{row['stall_ms']:.2f}",
        f"{row['cpu_seconds']:.3f}",
        _or_dash(row["max_relative_error"], "{:.0g}".format),
        "yes" if row["equal_to_pre"] else "no",
    )


def _percent(value: float | None) -> str:
    return _or_dash(value, "{:.1f} %".format)


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _or_dash(value: Any, shown: Any) -> str:
    return "-" if value is None else str(shown(value))


def _energy(result: dict[str, Any]) -> str:
    """Return the line below the table: what each row took, of which source."""
    medians = (
        f"{row['architecture']} {row['energy_joules']['median']:.3f} J"
        for row in result["rows"]
        if row["energy_joules"]
    )
    return "; ".join((f"energy: {result['energy']}", *medians))


def _say(line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
