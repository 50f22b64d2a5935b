"""Whether layers that are written down make as many rows as their windows say.

Windows are of rows, so heights can be checked, and widths cannot. Formats that round up or crop are written
as padding: ``below`` is larger by the rows that a last window reads beyond its input, smaller or negative
where rows are left out. A window as high as its input may make any number of rows.
"""

from models.geometry.cnn import Cnn, Edge, GeometryError, Window


def check_heights(cnn: Cnn) -> None:
    """Refuse a layer whose height does not follow from what it reads.

    Raises:
        GeometryError: there is one; the message has both heights.
    """
    for edge in cnn.edges:
        _check(cnn, edge)


def _check(cnn: Cnn, edge: Edge) -> None:
    source, target = cnn.layers[edge.source], cnn.layers[edge.target]
    window = target.window if edge.window is None else edge.window
    made = _made(window, source.output.height)
    if made is not None and made != target.output.height:
        raise GeometryError(
            f"{cnn.name}: layer {target.name[:60]!r} has a height of {target.output.height}, but its "
            f"window makes {made} of the {source.output.height} rows of {source.name[:60]!r}: correct "
            "output or window; below says how many rows are added, or cropped, at the end"
        )


def _made(window: Window, height: int) -> int | None:
    """Return how many rows ``window`` makes of so many; None: it covers them all, and may make any."""
    if window.reach >= height and window.above == window.below == 0:
        return None
    moves = height + window.above + window.below - window.reach
    return window.factor * (moves // window.stride + 1)
