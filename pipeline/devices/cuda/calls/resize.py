"""Launches of kernels/resize.cu: planes of another size, by tables of what to read."""

from dataclasses import dataclass

from pipeline.devices.cuda.call import Call, Pointer
from pipeline.devices.cuda.calls.launches import per_element


@dataclass(frozen=True)
class Planes:
    """``count`` planes [height, width] and what they become, [out_height, out_width]."""

    count: int
    height: int
    width: int
    out_height: int
    out_width: int

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.height, self.width, self.out_height, self.out_width

    @property
    def results(self) -> int:
        return self.count * self.out_height * self.out_width


@dataclass(frozen=True)
class Table:
    """Of one axis: int32 and float32 [out, taps]; what each result reads, with which weights."""

    indices: Pointer
    weights: Pointer
    taps: int


def pick(
    x: Pointer, y: Pointer, rows: Pointer, columns: Pointer, planes: Planes, fill: float = 0.0
) -> Call:
    """Return the launch that takes one element for each result.

    Args:
        x: float32 planes.
        y: float32 results.
        rows: int32 [out_height]; negative: ``fill``.
        columns: int32 [out_width]; negative: ``fill``.
        planes: the sizes.
        fill: what is outside.

    Raises:
        ValueError: there is nothing to compute, or too much.
    """
    numbers = (*planes.sizes, planes.results, float(fill))
    return per_element("resize", "pick", planes.results, x, y, rows, columns, *numbers)


def interpolate(x: Pointer, y: Pointer, rows: Table, columns: Table, planes: Planes) -> Call:
    """Return the launch that takes weighted sums along rows and columns.

    Raises:
        ValueError: there is nothing to compute, or too much.
    """
    tables = (rows.indices, rows.weights, columns.indices, columns.weights)
    numbers = (*planes.sizes, rows.taps, columns.taps, planes.results)
    return per_element("resize", "interpolate", planes.results, x, y, *tables, *numbers)
