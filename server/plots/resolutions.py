"""Figures 14 and 15 of seed 003: delay and memory by the resolution of the images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from server.plots.figures import MIB, figure, log_scale, style
from server.plots.names import name_ends


def plot_resolutions(result: Mapping[str, Any], folder: Path) -> Path:
    """Plot a document of ``bench resolutions``; return the file.

    Raises:
        PlotError: one cannot be written.
    """
    path = folder / f"{result['model']}-resolutions.svg"
    runs = sorted(result["runs"], key=lambda run: run["resolution"])
    sides = [run["resolution"] for run in runs]
    rows = [{row["architecture"]: row for row in run["rows"]} for run in runs]
    delay = {name: [each[name]["delay_ms"]["median"] for each in rows] for name in rows[0]}
    memory = {name: [each[name]["weight_bytes"] / MIB for each in rows] for name in rows[0]}
    with figure(path, rows=2) as (upper, lower):
        _lines(upper, sides, delay)
        _lines(lower, sides, memory)
        log_scale(lower.yaxis, [value for values in memory.values() for value in values])
        upper.set(ylabel="delay (ms), median", title=f"{result['model']} by resolution")
        lower.set(ylabel="memory for weights (MiB)", xlabel="side of the input (pixels)")
        for axes, lines in ((upper, delay), (lower, memory)):
            axes.set_xticks(sides)
            axes.grid()
            name_ends(axes, [(name, (sides[-1], line[-1])) for name, line in lines.items()])
    return path


def _lines(axes: Any, sides: Sequence[int], lines: Mapping[str, Sequence[float]]) -> None:
    for name, line in lines.items():
        axes.plot(sides, line, **style(name))
