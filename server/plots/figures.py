"""One figure and its file. matplotlib is imported where a plot is asked for, and never opens a window."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.errors import InputError

MIB = 1 << 20
# The same architecture has the same colour and mark in every figure.
_NAMES = ("pre", "seq", "sync", "async", "async-md", "2s", "2s-md", "auto")
_MARKS = "osDv^<>*"


class PlotError(InputError):
    """A plot cannot be made or written."""


def check_plotting() -> None:
    """Find out, before anything is measured, whether plots can be made.

    Raises:
        PlotError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise PlotError("plots need matplotlib: pip install 'layerstream[bench]'")


@contextmanager
def figure(path: Path, rows: int = 1) -> Iterator[Any]:
    """Yield the axes of a figure (several where it has several ``rows``); write it to ``path`` at the end.

    Raises:
        PlotError: it cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Texts stay texts, and equal figures are equal files.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "layerstream"}):
        made = Figure(figsize=(7, 4 * rows), layout="constrained")
        FigureCanvasAgg(made)
        yield made.subplots(rows)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            made.savefig(path, metadata={"Date": None})
        except OSError as exc:
            raise PlotError(f"{path}: {exc.strerror or exc}") from exc


def style(label: str) -> dict[str, Any]:
    """Return colour and mark of an architecture, limited ones (NAME@LIMIT) as those without."""
    name = label.partition("@")[0]
    if name not in _NAMES:
        return {"color": "black", "marker": "x"}
    position = _NAMES.index(name)
    return {"color": f"C{position}", "marker": _MARKS[position]}
