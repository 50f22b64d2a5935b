"""Rows of inputs and outputs: what a layer needs, and what it is done with (seed 000, Table 2; seed 001).

Rows are counted from the top: "so many rows" are the first so many.
"""

from models.geometry.cnn import Cnn, CnnLayer, Edge

#: A gene: rows that a layer makes at a time; WHOLE: all, in one phase.
WHOLE = 0
ROWS = (WHOLE, 1, 2, 4, 8, 16)


def phases(layer: CnnLayer, rows: int) -> int:
    """Return Phi of ``layer`` that makes so many rows at a time (Eq. 6)."""
    return 1 if rows == WHOLE else -(-layer.output.height // rows)


def made(layer: CnnLayer, rows: int, wanted: int) -> int:
    """Return how many rows exist when ``wanted`` of them do: whole phases of ``rows``."""
    if rows == WHOLE:
        return layer.output.height if wanted else 0
    return min(-(-wanted // rows) * rows, layer.output.height)


def needed(cnn: Cnn, edge: Edge, rows: int) -> int:
    """Return how many rows of an edge's source the first ``rows`` rows of its target need."""
    if rows <= 0:
        return 0
    height = cnn.layers[edge.source].output.height
    return min(max(cnn.window(edge).end(rows), 1), height)


def done(cnn: Cnn, edge: Edge, rows: int) -> int:
    """Return how many rows of an edge's source nobody needs when its target has made ``rows`` rows."""
    height = cnn.layers[edge.source].output.height
    if rows >= cnn.layers[edge.target].output.height:
        return height
    return min(max(cnn.window(edge).begin(rows), 0), height)
