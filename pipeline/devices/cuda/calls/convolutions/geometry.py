"""Convolutions as kernels see them: sizes, and what is done to the sums."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.devices.cuda.call import Argument, Pointer
from pipeline.devices.cuda.calls.activation import Activation
from pipeline.devices.cuda.calls.launches import MAX_ELEMENTS


@dataclass(frozen=True)
class Epilogue:
    """activation(sum + bias + residual), or activation(sum + bias) + residual if ``residual_last``.

    ``bias``: float32, one for each channel. ``residual``: float32, laid out as the output; it may be
    the output itself, which is then overwritten.
    """

    bias: Pointer | None = None
    residual: Pointer | None = None
    residual_last: bool = False
    activation: Activation = Activation.NONE
    alpha: float = 0.0
    beta: float = 0.0

    @property
    def tail(self) -> tuple[int, int, float, float]:
        """The last arguments of every kernel with an epilogue."""
        last = int(self.residual_last)
        return (last, int(self.activation), float(self.alpha), float(self.beta))


@dataclass(frozen=True)
class Convolution:
    """x [batch, channels, height, width] to y [batch, filters, out_height, out_width].

    Weights are [filters, channels / groups, *kernel]. ``pads``: top, left; those on the other sides
    follow from the sizes.

    Raises:
        ValueError: the sizes do not fit each other, or are more than kernels can count.
    """

    batch: int
    channels: int
    height: int
    width: int
    filters: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int]
    dilations: tuple[int, int]
    out_height: int
    out_width: int
    groups: int = 1

    def __post_init__(self) -> None:
        sizes = (self.batch, self.channels, self.height, self.width, self.filters, self.groups)
        if min(*sizes, *self.kernel, *self.strides, *self.dilations, self.pixels) < 1:
            raise ValueError(f"empty: {self}")
        if self.channels % self.groups or self.filters % self.groups:
            raise ValueError(f"{self.groups} groups do not divide the channels: {self}")
        # The second limit is that of the kernels' division of k by the kernel's area.
        if (
            max(self.batch * math.prod(sizes[1:4]), self.outputs, self.filters * self.depth)
            > MAX_ELEMENTS
            or self.depth * math.prod(self.kernel) >= 1 << 32
        ):
            raise ValueError(f"too large: {self}")

    @property
    def depth(self) -> int:
        """Products of a sum."""
        return self.channels // self.groups * math.prod(self.kernel)

    @property
    def pixels(self) -> int:
        """Of an output channel."""
        return self.out_height * self.out_width

    @property
    def outputs(self) -> int:
        return self.batch * self.filters * self.pixels

    @property
    def is_plain(self) -> bool:
        """Whether the input is the matrix [channels, pixels] that the weights are multiplied with."""
        kept = (self.out_height, self.out_width) == (self.height, self.width)
        return kept and self.kernel == self.strides == (1, 1) and self.pads == (0, 0)

    @property
    def is_depthwise(self) -> bool:
        """Whether every channel of the input has filters of its own."""
        return self.groups == self.channels and self.groups > 1

    def numbers(self, split_k: int | None = None) -> tuple[int, ...]:
        """Return the structure Convolution of kernels/headers/window.cuh; by default k is not split."""
        plane = (self.channels // self.groups, self.height, self.width)
        window = (*self.kernel, *self.strides, *self.pads, *self.dilations)
        split = (self.depth if split_k is None else split_k, self.outputs)
        area = math.prod(self.kernel)
        return (
            *plane,
            self.filters // self.groups,
            *window,
            *(self.out_height, self.out_width, self.groups),
            *split,
            *(_reciprocal(area), _reciprocal(self.kernel[1])),
        )


def _reciprocal(divisor: int) -> int:
    """Return 2^32 / divisor + 1 in the 32 bits of a signed number; 0 for 1."""
    if divisor == 1:
        return 0
    found = (1 << 32) // divisor + 1
    return found - (1 << 32) if found >= 1 << 31 else found


def moved(pointer: Pointer, floats: int) -> Pointer:
    """Return where ``floats`` numbers behind ``pointer`` lie."""
    return pointer.moved(4 * floats)


def blocks(count: int, threads: int) -> tuple[int, int, int]:
    """Return the grid of one thread for each of ``count``."""
    return (-(-count // threads), 1, 1)


def with_epilogue(
    head: Sequence[Argument], epilogue: Epilogue, numbers: Sequence[Argument]
) -> tuple[Argument, ...]:
    """Return the arguments of a kernel: its own, bias and residual, sizes, the other parameters."""
    return (*head, epilogue.bias, epilogue.residual, *numbers, *epilogue.tail)
