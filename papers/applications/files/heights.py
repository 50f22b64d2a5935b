"""Whether layers that are written down make as many rows as their windows say.

Windows are of rows, so heights can be checked, and widths cannot. Formats that round up or crop are written
as padding: ``below`` is larger by the rows that a last window reads beyond its input, smaller or negative
where rows are left out. A window as high as its input may make any number of rows.
"""

from models.geometry.cnn import Cnn, Edge, GeometryError


def check_heights(cnn: Cnn) -> None:
    """Refuse a layer whose height does not follow from what it reads.

    Raises:
        GeometryError: there is one; the message has both heights.
    """
    for edge in cnn.edges:
        _check(cnn, edge)


def _check(cnn: Cnn, edge: Edge) -> None:
    source, target = cnn.layers[edge.source], cnn.layers[edge.target]
    window, height = cnn.window(edge), source.output.height
    if window.reach >= height and window.before == window.behind == 0:
        return
    made = window.made(height)
    if made != target.output.height:
        raise GeometryError(
            f"{cnn.name}: layer {target.name[:60]!r} has a height of {target.output.height}, but its "
            f"window makes {made} of the {height} rows of {source.name[:60]!r}: correct "
            "output or window; below says how many rows are added, or cropped, at the end"
        )
