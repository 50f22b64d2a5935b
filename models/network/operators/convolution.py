"""Convolutions, with the sum and the activation that may be part of them."""

import math
from dataclasses import dataclass

from models.network.activations import Activation
from models.network.macs import macs
from models.network.node import NamedTensor, NodeReader, UnsuitedError
from models.network.windows import Window, Windows

#: Where a convolution has what it adds, if anything; weights and a bias are before it.
ADDEND = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """activation(x * weight + bias + addend), or activation(x * weight + bias) + addend: ``adds_last``.

    ``x``: [N, C, ...]. ``weight``: [filters, C / groups, *kernel]. ``bias``: [filters]. ``addend``: as
    ``y``, [N, filters, ...].
    """

    x: NamedTensor
    weight: NamedTensor
    y: NamedTensor
    windows: Windows
    groups: int = 1
    bias: NamedTensor | None = None
    addend: NamedTensor | None = None
    adds_last: bool = False
    activation: Activation | None = None

    @property
    def filters(self) -> int:
        return self.weight.shape[0]

    @property
    def depth(self) -> int:
        """Products of a sum."""
        return math.prod(self.weight.shape[1:])

    @property
    def pixels(self) -> int:
        """Of a filter's result."""
        return math.prod(self.windows.result)

    @property
    def macs(self) -> int:
        return macs(math.prod(self.weight.shape), self.y.shape[0] * self.pixels)

    @property
    def is_pointwise(self) -> bool:
        """Whether each window is one element, at the same place."""
        return self.windows.size == self.windows.result and all(
            (axis.kernel, axis.stride, axis.before) == (1, 1, 0) for axis in self.windows.axes
        )

    @property
    def is_depthwise(self) -> bool:
        """Whether every channel of the input has filters of its own."""
        return self.groups == self.x.shape[1] > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TransposedConvolution:
    """Each element of ``x`` [N, C, ...] is spread over a window of ``y`` [N, filters, ...].

    ``weight``: [C, filters / groups, *kernel]. ``windows``: those of the convolution from ``y`` to ``x``.
    """

    x: NamedTensor
    weight: NamedTensor
    y: NamedTensor
    windows: Windows
    groups: int = 1
    bias: NamedTensor | None = None


def convolution(read: NodeReader) -> Convolution:
    """Conv, and those whose fourth input is added: FusedConv, the blocked one."""
    x, weight = read.floats(0), read.floats(1)
    if len(weight.shape) != len(x.shape):
        raise UnsuitedError(f"a weight {list(weight.shape)} on {list(x.shape)}")
    windows = read.windows(weight.shape[2:], x.shape[2:])
    groups = int(read.attribute("group"))
    if weight.shape[1] * groups != x.shape[1] or weight.shape[0] % groups:
        raise UnsuitedError(
            f"weights {list(weight.shape)} in {groups} groups, input {list(x.shape)}"
        )
    return Convolution(
        x=x,
        weight=weight,
        y=read.made(x, (x.shape[0], weight.shape[0], *windows.result)),
        windows=windows,
        groups=groups,
        bias=read.optional(2),
        addend=read.optional(ADDEND),
    )


def transposed_convolution(read: NodeReader) -> TransposedConvolution:
    """ConvTranspose."""
    x, weight = read.floats(0), read.floats(1)
    groups, size = int(read.attribute("group")), x.shape[2:]
    if (
        len(size) not in {1, 2}
        or len(weight.shape) != len(x.shape)
        or x.shape[1] != weight.shape[0]
    ):
        raise UnsuitedError(f"a weight {list(weight.shape)} on {list(x.shape)}")
    axes, result = _spread(read, weight.shape[2:], size)
    return TransposedConvolution(
        x=x,
        weight=weight,
        y=read.made(x, (x.shape[0], weight.shape[1] * groups, *result)),
        # From the result to the input, as a convolution would go.
        windows=Windows(axes, result, size, (0,) * len(size)),
        groups=groups,
        bias=read.optional(2),
    )


def _spread(
    read: NodeReader, kernel: tuple[int, ...], size: tuple[int, ...]
) -> tuple[tuple[Window, ...], tuple[int, ...]]:
    """Return how windows of ``kernel`` lie on the result of a ConvTranspose of ``size``, and its size."""
    count = len(kernel)
    strides, dilations, more = (
        tuple(read.attribute(name) or [default] * count)
        for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    axes = [Window(*numbers) for numbers in zip(kernel, strides, dilations, strict=True)]
    # What comes without padding.
    whole = [
        (length - 1) * axis.stride + axis.reach + extra
        for axis, length, extra in zip(axes, size, more, strict=True)
    ]
    pads = list(read.attribute("pads") or [0] * (2 * count))
    wanted, way = read.attribute("output_shape"), read.attribute("auto_pad")
    if wanted or way.startswith("SAME"):
        asked = (
            wanted[-count:]
            if wanted
            else [length * stride for length, stride in zip(size, strides, strict=True)]
        )
        totals = [max(n - length, 0) for n, length in zip(whole, asked, strict=True)]
        less, greater = [n // 2 for n in totals], [n - n // 2 for n in totals]
        pads = [*less, *greater] if way == "SAME_UPPER" else [*greater, *less]
    elif way == "VALID":
        pads = [0] * (2 * count)
    result = tuple(
        wanted[-count:]
        if wanted
        else [n - a - b for n, a, b in zip(whole, pads[:count], pads[count:], strict=True)]
    )
    if min(*result, *pads) < 0 or min(result) < 1:
        raise UnsuitedError(f"a result of {list(result)} with pads {pads}")
    padded = (
        Window(axis.kernel, axis.stride, axis.dilation, before, behind)
        for axis, before, behind in zip(axes, pads[:count], pads[count:], strict=True)
    )
    return tuple(padded), result
