"""Figures 14 and 15 of seed 003: delay and memory by the resolution of the images."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from server.plots.figures import MIB, figure, style


def plot_resolutions(result: Mapping[str, Any], folder: Path) -> Path:
    """Plot a document of ``bench resolutions``; return the file.

    Raises:
        PlotError: it cannot be written.
    """
    path = folder / f"{result['model']}-resolutions.svg"
    sides = [run["resolution"] for run in result["runs"]]
    rows = [{row["architecture"]: row for row in run["rows"]} for run in result["runs"]]
    with figure(path, rows=2) as (delays, memory):
        for label in rows[0]:
            look = style(label)
            delays.plot(
                sides, [each[label]["delay_ms"]["median"] for each in rows], label=label, **look
            )
            memory.plot(
                sides, [each[label]["weight_bytes"] / MIB for each in rows], label=label, **look
            )
        delays.set(ylabel="delay (ms), median", title=f"{result['model']} by resolution")
        memory.set(ylabel="memory for weights (MiB)", xlabel="side of the input (pixels)")
        memory.set_yscale("log")
        for axes in (delays, memory):
            axes.set_xticks(sides)
            axes.grid(alpha=0.3)
            axes.legend(fontsize="small")
    return path
