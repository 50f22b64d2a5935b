"""Plots of measurements, as the figures of seed 003 show them; needs matplotlib (the extra ``bench``)."""

from server.plots.figures import PlotError, check_plotting
from server.plots.measurements import (
    plot_memory_delay,
    plot_pipeline,
    plot_resolutions,
    plot_search,
)

__all__ = [
    "PlotError",
    "check_plotting",
    "plot_memory_delay",
    "plot_pipeline",
    "plot_resolutions",
    "plot_search",
]
