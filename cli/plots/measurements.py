"""Figures 12 to 15 of seed 003: memory against delay, the search for the ring, and both by resolution."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cli.plots.figures import MIB, STRONG, figure, log_scale, name, style

# Named first.
_FIRST = ("auto", "pre", "onnxruntime-resident", "openvino-resident")


def plot_pipeline(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Plot a document of ``bench pipeline``; return the files.

    Raises:
        PlotError: one cannot be written.
    """
    stem = f"{result['model']}-{result['resolution'] or 0}"
    files = [folder / f"{stem}-memory-delay.svg"]
    plot_memory_delay(result, files[0])
    if result["searches"]:
        files.append(folder / f"{stem}-search.svg")
        plot_search(result, files[1])
    return files


def plot_memory_delay(result: Mapping[str, Any], path: Path) -> None:
    """Plot memory for weights against the median delay, with its 95th percentile (Fig. 12)."""
    rows = sorted(result["rows"], key=_importance)
    points = {row["architecture"]: _measured(row) for row in rows}
    slow = {row["architecture"]: row["delay_ms"]["p95"] for row in rows}
    with figure(path) as axes:
        for label, (memory, delay) in points.items():
            look = style(label)
            axes.vlines(memory, delay, slow[label], color=look["color"], alpha=0.45, zorder=2)
            axes.plot(memory, delay, linestyle="", label=label, **look)
        limited = sorted(at for label, at in points.items() if label.startswith("auto"))
        axes.plot(*zip(*limited, strict=True), color=STRONG, zorder=4) if limited else None
        log_scale(axes.xaxis, [memory for memory, _ in points.values()])
        axes.set(
            xlabel="memory for weights (MiB)",
            ylabel="delay (ms), median to 95th percentile",
            title=_title(result),
        )
        axes.grid()
        name(axes)


def plot_search(result: Mapping[str, Any], path: Path) -> None:
    """Plot delay by weight memory for growing rings, the chosen one, and what was measured (Fig. 13)."""
    rows = {row["architecture"]: row for row in result["rows"]}
    pre = rows["pre"]["delay_ms"]["median"]
    widths = []
    with figure(path) as axes:
        for label, search in result["searches"].items():
            look = style(label)
            curve = [_simulated(point) for point in search["curve"]]
            chosen, measured = _simulated(search["chosen"]), _measured(rows[label])
            line = {"color": look["color"], "linewidth": 1.8, "label": f"{label}, simulated"}
            axes.plot(*zip(*curve, strict=True), **line)
            said = f"chosen: {chosen[0]:.3g} MiB"
            axes.plot(*chosen, linestyle="", label=said, **{**look, "zorder": 4})
            hollow = {"markerfacecolor": "white", "markeredgecolor": look["color"]}
            hollow |= {"markeredgewidth": 1.6, "label": "measured"}
            axes.plot(*measured, linestyle="", **{**look, **hollow})
            widths += [memory for memory, _ in (*curve, measured)]
        log_scale(axes.xaxis, widths)
        dashed = {"color": style("pre")["color"], "linestyle": "--", "linewidth": 1}
        axes.axhline(pre, label="pre, measured", **dashed)
        axes.set(xlabel="memory for weights (MiB)", ylabel="delay (ms)", title=_title(result))
        axes.grid()
        name(axes)


def _importance(row: Mapping[str, Any]) -> int:
    label = row["architecture"].partition("@")[0]
    return _FIRST.index(label) if label in _FIRST else len(_FIRST)


def _measured(row: Mapping[str, Any]) -> tuple[float, float]:
    return row["weight_bytes"] / MIB, row["delay_ms"]["median"]


def _simulated(point: Mapping[str, Any]) -> tuple[float, float]:
    return point["weight_bytes"] / MIB, point["delay_seconds"] * 1e3


def _title(result: Mapping[str, Any]) -> str:
    pixels = f" at {result['resolution']} px" if result["resolution"] else ""
    return f"{result['model']}{pixels}"


# Figures 14 and 15 of seed 003: delay and memory by the resolution of the images.


def plot_resolutions(result: Mapping[str, Any], folder: Path) -> Path:
    """Plot a document of ``bench resolutions``; return the file.

    Raises:
        PlotError: one cannot be written.
    """
    path = folder / f"{result['model']}-resolutions.svg"
    runs = sorted(result["runs"], key=lambda run: run["resolution"])
    sides = [run["resolution"] for run in runs]
    rows = [{row["architecture"]: row for row in run["rows"]} for run in runs]
    delay = {label: [each[label]["delay_ms"]["median"] for each in rows] for label in rows[0]}
    memory = {label: [each[label]["weight_bytes"] / MIB for each in rows] for label in rows[0]}
    with figure(path, rows=2) as (upper, lower):
        _lines(upper, sides, delay)
        _lines(lower, sides, memory)
        log_scale(lower.yaxis, [value for values in memory.values() for value in values])
        upper.set(ylabel="delay (ms), median", title=f"{result['model']} by resolution")
        lower.set(ylabel="memory for weights (MiB)", xlabel="side of the input (pixels)")
        for axes in (upper, lower):
            axes.set_xticks(sides)
            axes.grid()
            name(axes)
    return path


def _lines(axes: Any, sides: Sequence[int], lines: Mapping[str, Sequence[float]]) -> None:
    for label, line in lines.items():
        axes.plot(sides, line, label=label, **style(label))
