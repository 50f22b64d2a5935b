"""Launches of kernels/pooling.cu: pools with a window, on planes."""

from dataclasses import dataclass

from pipeline.devices.cuda.call import Call, Pointer
from pipeline.devices.cuda.calls.launches import per_element


@dataclass(frozen=True)
class Pool:
    """Windows on planes [height, width]; fields as in the kernel. Pads: top, left, bottom, right.

    Every window must touch the plane.
    """

    height: int
    width: int
    out_height: int
    out_width: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int]

    @property
    def numbers(self) -> tuple[int, ...]:
        sizes = (self.height, self.width, self.out_height, self.out_width)
        return (*sizes, *self.kernel, *self.strides, *self.pads, *self.dilations)


def max_pool(x: Pointer, y: Pointer, planes: int, pool: Pool) -> Call:
    """Return the launch of a max pool: float32 [planes, height, width] to [planes, out ...].

    Raises:
        ValueError: there is nothing to compute, or too much.
    """
    count = planes * pool.out_height * pool.out_width
    return per_element("pooling", "max_pool", count, x, y, pool.numbers, count)


def average_pool(x: Pointer, y: Pointer, planes: int, pool: Pool, padding_counts: bool) -> Call:
    """Return the launch of an average pool; with ``padding_counts`` padding is zeros, else nothing.

    Raises:
        ValueError: there is nothing to compute, or too much.
    """
    count = planes * pool.out_height * pool.out_width
    counted = int(padding_counts)
    return per_element("pooling", "average_pool", count, x, y, pool.numbers, counted, count)
