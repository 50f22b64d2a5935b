"""Rows of inputs and outputs: what a layer needs, and what it is done with (seed 000, Table 2; seed 001).

Rows are counted from the top: "so many rows" are the first so many. A layer whose output is higher than its
input makes several rows of each (upsampling); an input of one row serves all rows.
"""

from models.geometry.cnn import Cnn, Layer

#: A gene: rows that a layer makes at a time; WHOLE: all, in one phase.
WHOLE = 0
ROWS = (WHOLE, 1, 2, 4, 8, 16)


def phases(layer: Layer, rows: int) -> int:
    """Return Phi of ``layer`` that makes so many rows at a time (Eq. 6)."""
    return 1 if rows == WHOLE else -(-layer.output.height // rows)


def made(layer: Layer, rows: int, needed: int) -> int:
    """Return how many rows exist when ``needed`` of them do: whole phases of ``rows``."""
    if rows == WHOLE:
        return layer.output.height if needed else 0
    return min(-(-needed // rows) * rows, layer.output.height)


def needed(cnn: Cnn, source: int, target: int, rows: int) -> int:
    """Return how many rows of ``source`` the first ``rows`` rows of ``target`` need."""
    height = cnn.layers[source].output.height
    layer = cnn.layers[target]
    if rows <= 0:
        return 0
    factor = _factor(layer, height)
    if factor > 1:
        return min(-(-rows // factor), height)
    window = layer.window
    last = (rows - 1) * window.stride + window.reach - window.above
    return min(max(last, 1), height)


def done(cnn: Cnn, source: int, target: int, rows: int) -> int:
    """Return how many rows of ``source`` nobody needs for ``target`` when it has made ``rows`` rows."""
    height = cnn.layers[source].output.height
    layer = cnn.layers[target]
    if rows >= layer.output.height:
        return height
    factor = _factor(layer, height)
    if factor > 1:
        return rows // factor
    window = layer.window
    return min(max(rows * window.stride - window.above, 0), height)


def _factor(layer: Layer, height: int) -> int:
    """Return how many rows of output a row of input makes."""
    window = layer.window
    # A convolution with wide padding may make a few rows more, and never twice as many of few.
    return layer.output.height // height if window.reach == 1 and window.stride == 1 else 1
