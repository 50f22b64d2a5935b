"""From a list of boxes, decoded inside the network, to what it sees: YOLOv5, YOLOv8 and their kin."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.detection.recipe import ListedHead
from models.detection.sight import BLOCK_NUMBERS, Sight
from models.images.placement import Size

_BOX = 4


def seen_in_list(
    head: ListedHead, output: NDArray[Any], size: Size, threshold: float
) -> Iterator[Sight]:
    """Yield what may have a score above ``threshold``; ``size``: (width, height) of the input."""
    rows = output[0] if head.by_row else output[0].T
    step = max(1, BLOCK_NUMBERS // head.numbers)
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        likely = block[:, _BOX:] if head.objectness is None else block[:, head.objectness, None]
        entries = block[np.any(likely > np.float32(threshold), axis=1)]
        if len(entries):
            yield Sight(
                entries[:, :_BOX].astype(np.float64) / (*size, *size), _scores(head, entries)
            )


def _scores(head: ListedHead, entries: NDArray[np.float32]) -> NDArray[np.float32]:
    if head.objectness is None:
        return entries[:, _BOX:]
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(entries[:, head.objectness, None] * entries[:, head.objectness + 1 :])
