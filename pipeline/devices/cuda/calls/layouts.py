"""Layouts of tensors as kernels take them: axes innermost first, as few as possible."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

MAX_RANK = 6


@dataclass(frozen=True)
class Layout:
    """``sizes`` of axes, innermost first, and for each tensor its strides along them, in elements."""

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Sizes and then the strides of each tensor, as arrays of a kernel's structure."""
        found = _padded(self.sizes)
        for strides in self.strides:
            found += _padded(strides)
        return found


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a C-contiguous tensor, in elements."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def broadcast(shape: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    """Return strides that make a contiguous tensor of ``shape`` look like one of ``target``."""
    missing = len(target) - len(shape)
    strides = (0,) * missing + contiguous(shape)
    lengths = (1,) * missing + tuple(shape)
    return tuple(0 if n == 1 else stride for n, stride in zip(lengths, strides, strict=True))


def collapse(shape: Sequence[int], *strides: Sequence[int]) -> Layout:
    """Join axes that every tensor passes in one stride, and drop those of length 1.

    Args:
        shape: lengths of axes, outermost first.
        strides: of each tensor, along the same axes.

    Raises:
        ValueError: more than six axes are left.
    """
    sizes: list[int] = []
    steps: list[tuple[int, ...]] = []
    for axis in reversed(range(len(shape))):
        step = tuple(item[axis] for item in strides)
        if shape[axis] == 1:
            continue
        if sizes and step == tuple(inner * sizes[-1] for inner in steps[-1]):
            sizes[-1] *= shape[axis]
        else:
            sizes.append(shape[axis])
            steps.append(step)
    if not sizes:
        sizes, steps = [1], [(0,) * len(strides)]
    if len(sizes) > MAX_RANK:
        raise ValueError(f"{len(sizes)} axes")
    return Layout(tuple(sizes), tuple(zip(*steps, strict=True)))


def _padded(values: Sequence[int]) -> tuple[int, ...]:
    return (*values, *[0] * (MAX_RANK - len(values)))
