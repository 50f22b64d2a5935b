"""The classification extension: of an output only its best classes, as text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def best_classes(scores: NDArray[Any], n_classes: int, labels: Sequence[str] = ()) -> NDArray[Any]:
    """Return the best ``n_classes`` of ``scores``, best first, ties by index, as "score:index[:label]".

    Of each item of the first axis, if there are two or more: strings of shape [items, classes], otherwise
    [classes]; fewer classes where there are not so many. ``labels``: by index, as far as they go.
    """
    n_rows = scores.shape[0] if scores.ndim > 1 else 1
    rows = scores.reshape(n_rows, scores.size // max(n_rows, 1))
    n_best = min(n_classes, rows.shape[1])
    found = np.empty((len(rows), n_best), object)
    for row, best in zip(rows, found, strict=True):
        best[:] = [_line(row[index], index, labels) for index in _order(row)[:n_best]]
    return found if scores.ndim > 1 else found.reshape(n_best)


def _order(row: NDArray[Any]) -> list[int]:
    """Return the indices of ``row``, highest value first; NaN is where minus infinity would be."""
    values = np.where(np.isnan(row), -np.inf, row) if row.dtype.kind == "f" else row
    backwards = np.argsort(values[::-1], kind="stable")[::-1]
    order: list[int] = (row.size - 1 - backwards).tolist()
    return order


def _line(value: Any, index: int, labels: Sequence[str]) -> str:
    label = f":{labels[index]}" if index < len(labels) else ""
    return f"{value!s}:{index}{label}"
