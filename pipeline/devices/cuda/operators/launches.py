"""What the kernels of all families are given: threads, layouts, functions of each element by number."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.network.activations import Activation
from models.network.node import UnsuitedError
from models.network.windows import Windows
from pipeline.devices.cuda.call import Argument, KernelLaunch
from pipeline.devices.interface.cuda import ACTIVATIONS, MAX_RANK

_THREADS = 256
#: Indices of elements are 32-bit, and the last block may reach past the last element.
MAX_ELEMENTS = 2**31 - _THREADS


def activation_arguments(activation: Activation | None) -> tuple[int, float, float]:
    """Return the last arguments of a kernel that applies ``activation``."""
    if activation is None:
        return 0, 0.0, 0.0
    if activation.kind not in ACTIVATIONS:
        raise UnsuitedError(f"no kernel has {activation.kind}")
    return ACTIVATIONS.index(activation.kind), activation.alpha, activation.beta


def threads_for(length: int) -> int:
    """Return threads of a block that works on ``length`` numbers together: a power of two, 32 to 256."""
    return min(max(1 << (length - 1).bit_length(), 32), _THREADS)


def blocks(count: int, threads: int = _THREADS) -> tuple[int, int, int]:
    """Return the grid of one thread for each of ``count``."""
    return (-(-count // threads), 1, 1)


def per_element(module: str, function: str, count: int, *arguments: Argument) -> KernelLaunch:
    """Return a launch with one thread for each of ``count`` elements.

    Raises:
        UnsuitedError: there are none, or more than kernels can count.
    """
    if not 0 < count <= MAX_ELEMENTS:
        raise UnsuitedError(f"{count} elements")
    return KernelLaunch(module, function, blocks(count), _THREADS, arguments)


def per_group(
    module: str, function: str, groups: int, length: int, *arguments: Argument
) -> KernelLaunch:
    """Return a launch with one block for each of ``groups`` groups of ``length`` numbers.

    Raises:
        UnsuitedError: there are none, or more than kernels can count.
    """
    if not 0 < groups * length <= MAX_ELEMENTS:
        raise UnsuitedError(f"{groups} groups of {length} elements")
    return KernelLaunch(module, function, (groups, 1, 1), threads_for(length), arguments)


@dataclass(frozen=True)
class StridedLayout:
    """``sizes`` of axes, innermost first, and for each tensor its strides along them, in elements."""

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def rank(self) -> int:
        return len(self.sizes)


def members_of(windows: Windows) -> dict[str, int]:
    """Return the members of a kernel's structure that are of ``windows`` on a plane."""
    pairs = {
        "": windows.size,
        "out_": windows.result,
        "kernel_": windows.kernel,
        "stride_": windows.strides,
        "dilation_": windows.dilations,
    }
    axes = {
        f"{name}{axis}": length
        for name, pair in pairs.items()
        for axis, length in zip(("height", "width"), pair, strict=True)
    }
    return {**axes, **dict(zip(("pad_top", "pad_left"), windows.before, strict=True))}


def collapse(shape: Sequence[int], *strides: Sequence[int]) -> StridedLayout:
    """Join axes that every tensor passes in one stride, and drop those of length 1.

    Args:
        shape: lengths of axes, outermost first.
        strides: of each tensor, along the same axes.

    Raises:
        UnsuitedError: more than six axes are left.
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
        raise UnsuitedError(f"{len(sizes)} axes")
    return StridedLayout(tuple(sizes), tuple(zip(*steps, strict=True)))
