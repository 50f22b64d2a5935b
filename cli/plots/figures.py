"""One figure and its file. matplotlib is imported where a plot is asked for, and never opens a window."""

import importlib.util
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from models.whole_files import check_writable, users_file
from pipeline.execution.errors import InputError

MIB = 1 << 20
# `auto` is what is shown, the architectures of the paper what it is compared with: they stay pale.
STRONG = "#c8102e"
_DARK = "#333333"
_LOOKS = {
    "pre": (_DARK, "o"),
    "seq": ("#a89f91", "s"),
    "sync": ("#b39a6b", "D"),
    "async": ("#8aa583", "v"),
    "async-md": ("#6f9a8d", "^"),
    "2s": ("#8fa9c4", "<"),
    "2s-md": ("#6688b0", ">"),
    "auto": (STRONG, "*"),
    "onnxruntime-resident": (_DARK, "X"),
    "openvino-resident": (_DARK, "P"),
}
_SETTINGS: dict[str, Any] = {
    # Texts stay texts, and equal figures are equal files.
    "svg.fonttype": "none",
    "svg.hashsalt": "layerstream",
    # One unit of the canvas is one point, as in the file.
    "figure.dpi": 72,
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 13,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "errorbar.capsize": 3,
}


class PlotError(InputError):
    """A plot cannot be made or written."""


def check_plotting(folder: Path) -> None:
    """Find out, before anything is measured, whether plots can be made in ``folder``, which is made.

    Raises:
        PlotError: matplotlib is not installed, or no file can be made there.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise PlotError("plots need matplotlib: pip install matplotlib")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_writable(folder)
    except OSError as exc:
        raise PlotError(f"{folder}: {exc.strerror or exc}") from exc


@contextmanager
def figure(path: Path, rows: int = 1) -> Iterator[Any]:
    """Yield the axes of a figure (several where it has several ``rows``); write it to ``path`` at the end.

    Raises:
        PlotError: it cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(_SETTINGS):
        drawing = Figure(figsize=(8.5, 4.6 * rows), layout="constrained")
        FigureCanvasAgg(drawing)
        yield drawing.subplots(rows)
        try:
            with users_file(path) as file:
                drawing.savefig(file, format=path.suffix.removeprefix("."), metadata={"Date": None})
        except OSError as exc:
            raise PlotError(f"{path}: {exc.strerror or exc}") from exc


def style(label: str) -> dict[str, Any]:
    """Return how an architecture is drawn in every figure, limited ones (NAME@LIMIT) as those without."""
    name = label.partition("@")[0]
    color, marker = _LOOKS.get(name, (_DARK, "x"))
    strong = name == "auto"
    return {
        "color": color,
        "marker": marker,
        "markersize": 14 if strong else 8,
        "markeredgecolor": "white",
        "markeredgewidth": 0.8,
        "zorder": 5 if strong else 3,
    }


def name(axes: Any) -> None:
    """Name what ``axes`` show, beside them."""
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from ``low`` to ``high`` (above 0): 1, 2, 5, 10, ..., or finer where few fit."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    within: list[float] = []
    for steps in ((1, 2, 5), range(1, 10), [step / 10 for step in range(10, 100)]):
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        within = [tick for tick in ticks if low <= tick <= high]
        if len(within) > 1:
            break
    return within


def log_scale(axis: Any, values: Sequence[float]) -> None:
    """Make an axis logarithmic around ``values``, with round numbers written out."""
    from matplotlib.ticker import FixedLocator, NullLocator

    room = 1.2 * (max(values) / min(values)) ** 0.05
    low, high = min(values) / room, max(values) * room
    axis.axes.set(**{f"{axis.axis_name}scale": "log", f"{axis.axis_name}lim": (low, high)})
    axis.set_major_locator(FixedLocator(log_ticks(low, high)))
    axis.set_major_formatter(lambda value, _position: f"{value:g}")
    axis.set_minor_locator(NullLocator())
