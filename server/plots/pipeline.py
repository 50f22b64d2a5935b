"""Figures 12 and 13 of seed 003: memory against delay, and the search for the ring of least delay."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server.plots.figures import MIB, figure, style

_MOST_PERCENT = 50


def plot_pipeline(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Plot a document of ``bench pipeline``; return the files.

    Raises:
        PlotError: one cannot be written.
    """
    name = f"{result['model']}-{result['resolution'] or 0}"
    files = [folder / f"{name}-memory-delay.svg"]
    plot_memory_delay(result, files[0])
    if result["searches"]:
        files.append(folder / f"{name}-search.svg")
        plot_search(result, files[1])
    return files


def plot_memory_delay(result: Mapping[str, Any], path: Path) -> None:
    """Plot memory for weights against the median delay, with its 95th percentile (Fig. 12)."""
    with figure(path) as axes:
        for row in result["rows"]:
            delay, memory = row["delay_ms"], row["weight_bytes"] / MIB
            more = [[0], [delay["p95"] - delay["median"]]]
            axes.errorbar(
                [memory],
                [delay["median"]],
                more,
                capsize=3,
                linestyle="",
                **style(row["architecture"]),
            )
            # Names of what holds all weights stand to the left: they are the last on the right.
            side = "right" if row["weight_percent"] > _MOST_PERCENT else "left"
            axes.annotate(
                row["architecture"],
                (memory, delay["median"]),
                textcoords="offset points",
                xytext=(-6 if side == "right" else 6, 4),
                ha=side,
                fontsize="small",
            )
        axes.set(
            xlabel="memory for weights (MiB)",
            ylabel="delay (ms), median and 95th percentile",
            title=_title(result),
        )
        axes.set_xscale("log")
        axes.grid(alpha=0.3, which="both")


def plot_search(result: Mapping[str, Any], path: Path) -> None:
    """Plot delay by weight memory for growing rings, the chosen one, and what was measured (Fig. 13)."""
    rows = {row["architecture"]: row for row in result["rows"]}
    with figure(path) as axes:
        for label, found in result["searches"].items():
            look = style(label)
            curve, chosen = found["curve"], found["chosen"]
            axes.plot(
                [point["weight_bytes"] / MIB for point in curve],
                [point["delay_seconds"] * 1e3 for point in curve],
                color=look["color"],
                label=f"{label}, simulated",
            )
            axes.plot(
                chosen["weight_bytes"] / MIB,
                chosen["delay_seconds"] * 1e3,
                **look,
                linestyle="",
                label=f"{label}, chosen",
            )
            measured = rows[label]
            axes.plot(
                measured["weight_bytes"] / MIB,
                measured["delay_ms"]["median"],
                **{**look, "marker": "+"},
                linestyle="",
                markersize=10,
                label=f"{label}, measured",
            )
        axes.axhline(
            rows["pre"]["delay_ms"]["median"], color="grey", linestyle="--", label="pre, measured"
        )
        axes.set(xlabel="memory for weights (MiB)", ylabel="delay (ms)", title=_title(result))
        axes.set_xscale("log")
        axes.grid(alpha=0.3, which="both")
        axes.legend(fontsize="small")


def _title(result: Mapping[str, Any]) -> str:
    pixels = f" at {result['resolution']} px" if result["resolution"] else ""
    return f"{result['model']}{pixels}"
