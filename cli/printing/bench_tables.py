"""What ``bench`` prints for people: the tables of seed 003 with our rows."""

from collections.abc import Iterator, Sequence
from typing import Any

from cli.printing.output import print_table, say
from cli.printing.tables import SizeUnit, number, percent, unit_of_rows
from models.sizes import format_size

# Tables of at most 80 columns: a terminal's, also where the output of a pipe is read in one.
_DELAYS = ("of all %", "median ms", "p95 ms", "to pre %")
_CHECKS = ("architecture", "simulated ms", "bound ms", "stall ms", "CPU s", "error", "as pre")
# Parts of a sweep that are told apart.
_SHARES = 12
_SIZES = ("weight_bytes", "equation_bytes", "equation_layer_bytes", "arena_bytes", "read_bytes")


def print_pipeline(result: dict[str, Any]) -> None:
    """Print one run of ``bench pipeline``: the paper's table, its memory equations, and our checks."""
    pixels = f" at {result['resolution']} px" if result["resolution"] else ""
    threads = result["machine"]["threads"]
    title = f"{result['model']}{pixels}, {result['iterations']} runs each, {threads} threads"
    rows = result["rows"]
    unit = unit_of_rows(rows, *_SIZES)
    delays = ("architecture", unit.head("weights"), *_DELAYS)
    print_table(title, delays, (_delays(row, unit) for row in rows))
    memory = ("architecture", *map(unit.head, ("in chunks", "in layers", "arena", "read")))
    print_table(
        "Memory equations; arena; read a sweep", memory, (_memory(row, unit) for row in rows)
    )
    print_table("Predictions, stalls and checks", _CHECKS, (_checks(row) for row in rows))
    for note in (*_budget(result), *result["notes"]):
        say(note)
    for label, reasons in result["reasons"].items():
        for reason in reasons:
            say(f"{label}: {reason}")
    for label, shares in result.get("accounts", {}).items():
        _print_account(label, shares)
    if not result["machine"]["gpu"]:
        say(f"Native kernels for operators on elements: {result['machine']['native_kernels']}")
    say(_energy(result))


def print_resolutions(result: dict[str, Any]) -> None:
    """Print one run of ``bench resolutions``: a row a resolution and architecture."""
    rows = [(str(run["resolution"]), row) for run in result["runs"] for row in run["rows"]]
    unit = unit_of_rows((row for _, row in rows), "weight_bytes")
    print_table(
        f"{result['model']}: resolutions",
        ("px", "architecture", unit.head("weights"), *_DELAYS),
        ((pixels, *_delays(row, unit)) for pixels, row in rows),
    )


def print_peers(result: dict[str, Any]) -> None:
    """Print ``bench peers``: all networks in one table, each beside the runtimes that hold its weights."""
    threads = result["machine"]["threads"]
    print_table(
        f"{result['runs']} runs each, {threads} threads",
        (
            "network",
            "runtime",
            "median ms",
            "p95 ms",
            "to best peer",
            "peak MB",
            "anon. MB",
            "error",
        ),
        (
            _beside(network["model"], row)
            for network in result["networks"]
            for row in network["rows"]
        ),
    )
    for network in result["networks"]:
        for note in network["notes"]:
            say(f"{network['model']}: {note}")


def network_lines(network: dict[str, Any]) -> Iterator[str]:
    """Yield what ``bench peers`` found of one network, a line a runtime."""
    for row in network["rows"]:
        model, runtime, median, _, ratio, *_ = _beside(network["model"], row)
        yield f"{model}: {runtime} {median} ms, {ratio} of the best peer"


def _beside(model: str, row: dict[str, Any]) -> Sequence[str]:
    ratio, error = row["ratio_to_best_peer"], row["max_relative_error"]
    sizes = (row[key] for key in ("cgroup_peak_bytes", "anonymous_bytes"))
    return (
        model,
        row["runtime"],
        number(row["delay_ms"]["median"]),
        number(row["delay_ms"]["p95"]),
        "-" if ratio is None else f"{ratio:.2f}",
        *("-" if size is None else f"{size / 1e6:.0f}" for size in sizes),
        "-" if error is None else f"{error:.0g}",
    )


def _delays(row: dict[str, Any], unit: SizeUnit) -> Sequence[str]:
    delay = row["delay_ms"]
    return (
        row["architecture"],
        unit.show(row["weight_bytes"]),
        percent(row["weight_percent"]),
        number(delay["median"]),
        number(delay["p95"]),
        f"{100 * (row['ratio_to_pre'] - 1):+.1f}",
    )


def _memory(row: dict[str, Any], unit: SizeUnit) -> Sequence[str]:
    sizes = ("equation_bytes", "equation_layer_bytes", "arena_bytes", "read_bytes")
    return (row["architecture"], *(unit.show(row[key]) for key in sizes))


def _checks(row: dict[str, Any]) -> Sequence[str]:
    return (
        row["architecture"],
        number(row["predicted_ms"]),
        number(row["bound_ms"]),
        number(row["stall_ms"]),
        number(row["cpu_seconds"]),
        "-" if row["max_relative_error"] is None else f"{row['max_relative_error']:.0g}",
        "yes" if row["equal_to_pre"] else "no",
    )


def _print_account(label: str, shares: Sequence[dict[str, Any]]) -> None:
    """Print the parts of a sweep that take the most, and that take longer than with all weights."""
    most = sorted(shares, key=_beyond_pre, reverse=True)[:_SHARES]
    shown = [share for share in shares if share in most]
    rest = [share for share in shares if share not in most]
    sums = [("the rest", rest)] if rest else []
    lines = [(share["part"], [share]) for share in shown] + sums + [("all", list(shares))]
    print_table(
        f"{label}: where a sweep's time goes, ms",
        ("part", "launches", "measured", "predicted", "in pre", "waited"),
        ((name, *_sums(several)) for name, several in lines),
    )


def _beyond_pre(share: dict[str, Any]) -> float:
    """Return how many milliseconds a part takes more than with all weights in memory."""
    return float(share["kernel_ms"] + share["waited_ms"] - share["pre_ms"])


def _sums(shares: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield str(sum(share["launches"] for share in shares))
    for key in ("kernel_ms", "predicted_ms", "pre_ms", "waited_ms"):
        yield number(sum(share[key] for share in shares))


def _budget(result: dict[str, Any]) -> Iterator[str]:
    """Yield how a budget of all memory was divided."""
    if result.get("budget_bytes") is not None:
        (auto,) = (row for row in result["rows"] if row["architecture"] == "auto")
        yield (
            f"auto: of a budget of {format_size(result['budget_bytes'])} the model takes "
            f"{format_size(auto['total_bytes'])}, beside the tensors of its request"
        )


def _energy(result: dict[str, Any]) -> str:
    """Return the line below the table: what each row took, of which source."""
    medians = (
        f"{row['architecture']} {row['energy_joules']['median']:.3f} J"
        for row in result["rows"]
        if row["energy_joules"]
    )
    return "; ".join((f"energy: {result['energy']}", *medians))
