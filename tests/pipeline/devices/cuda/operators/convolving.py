"""Convolutions for tests: drawn shapes, an oracle in float64, and runs on the host with guards."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.network.activations import Activation, Kind
from models.network.node import NamedTensor, Shape
from models.network.operators.reading import Convolution
from models.network.windows import Window, Windows
from pipeline.devices.cuda.call import DevicePointer, KernelLaunch
from pipeline.devices.cuda.operators.convolutions.algorithms import Algorithm
from pipeline.devices.cuda.operators.convolutions.direct import Tile
from pipeline.devices.cuda.operators.convolutions.launching import convolve
from pipeline.devices.cuda.scope import ConvolutionSettings, Scope
from pipeline.devices.interface.cuda import ACTIVATIONS
from tests.examples import examples
from tests.oracle.functions import activate
from tests.pipeline.devices.cuda.guarded_memory import HostMemory
from tests.pipeline.devices.cuda.space import Kernels

Array = NDArray[Any]
EPSILON = 2.0**-24
#: Of float16; two factors are rounded.
HALF_EPSILON = 2.0**-11
quick = examples(12, many=1000, database=None)


# The others jump, or have no bound or no value somewhere: sums that are rounded show nothing there.
STEADY = [
    kind
    for kind in ACTIVATIONS
    if kind != "none"
    and kind not in {"ceil", "floor", "round", "sign", "log", "reciprocal", "sqrt"}
]


@dataclass(frozen=True)
class Problem:
    """A convolution with numbers."""

    it: Convolution
    x: Array
    w: Array
    bias: Array | None = None
    addend: Array | None = None

    def chunk(self, first: int, last: int) -> "Problem":
        """Filters first to last of a problem with one group."""
        return Problem(
            with_filters(self.it, last - first),
            self.x,
            self.w[first:last],
            None if self.bias is None else self.bias[first:last],
            None if self.addend is None else self.addend[:, first:last],
        )


def value(name: str, *shape: int) -> NamedTensor:
    return NamedTensor(name=name, dtype="float32", shape=shape)


def with_filters(it: Convolution, filters: int) -> Convolution:
    """The same layer with another number of filters."""
    y = it.y.shaped((it.y.shape[0], filters, *it.y.shape[2:]))
    return replace(
        it,
        weight=it.weight.shaped((filters, *it.weight.shape[1:])),
        y=y,
        bias=None if it.bias is None else it.bias.shaped((filters,)),
        addend=None if it.addend is None else it.addend.shaped(y.shape),
    )


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def make_problem(it: Convolution, seed: int = 0, parts: str = "") -> Problem:
    """A problem with seeded numbers; ``parts``: which of "bias", "addend" it has."""
    bias = value("bias", it.filters) if "bias" in parts else None
    addend = it.y.named("addend") if "addend" in parts else None
    return Problem(
        replace(it, bias=bias, addend=addend),
        numbers(seed, *it.x.shape),
        numbers(seed + 1, *it.weight.shape),
        numbers(seed + 2, it.filters) if bias else None,
        numbers(seed + 3, *it.y.shape) if addend else None,
    )


def natural(size: int, kernel: int, stride: int, pad: int, dilation: int) -> int:
    """Outputs along one axis with the same padding on both sides."""
    return (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1


def make_shape(
    channels: int,
    size: Shape,
    filters: int,
    kernel: Shape = (1, 1),
    *,
    strides: Shape = (1, 1),
    pads: Shape = (0, 0),
    dilations: Shape = (1, 1),
    batch: int = 1,
    groups: int = 1,
    more: int = 0,
) -> Convolution:
    """``more``: outputs beyond the natural ones, whose windows lie in padding below and right."""
    axes, result = [], []
    for n, *window in zip(size, kernel, strides, dilations, pads, strict=True):
        extent, stride, dilation, pad = window
        made = natural(n, extent, stride, pad, dilation) + more
        axis = Window(*window)
        axes.append(replace(axis, behind=max(axis.needed(0, made)[1] - n, 0)))
        result.append(made)
    return Convolution(
        x=value("x", batch, channels, *size),
        weight=value("w", filters, channels // groups, *kernel),
        y=value("y", batch, filters, *result),
        windows=Windows(tuple(axes), size, tuple(result), (0, 0)),
        groups=groups,
    )


KERNELS = st.sampled_from([(1, 1), (3, 3), (3, 3), (2, 2), (1, 3), (5, 2), (4, 4)])
PLAIN = ((1, 1), (0, 0), (1, 1))


@st.composite
def shapes(draw: st.DrawFn, kernels: st.SearchStrategy[tuple[int, int]] = KERNELS) -> Convolution:
    kernel = draw(kernels)
    pair = st.tuples
    small = st.integers(1, 2)
    strides, pads, dilations = PLAIN
    if not (kernel == (1, 1) and draw(st.booleans())):
        strides = draw(pair(st.integers(1, 3), st.integers(1, 3)))
        pads = draw(pair(st.integers(0, 2), st.integers(0, 2)))
        dilations = draw(pair(small, small))
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    least = [
        dilation * (extent - 1) + 1 for dilation, extent in zip(dilations, kernel, strict=True)
    ]
    size = (draw(st.integers(least[0], 13)), draw(st.integers(least[1], 13)))
    return make_shape(
        groups * draw(st.integers(1, 9)),
        size,
        groups * draw(st.one_of(st.integers(1, 9), st.integers(1, 140))),
        kernel,
        strides=strides,
        pads=pads,
        dilations=dilations,
        batch=draw(small),
        groups=groups,
        more=0 if (strides, pads, dilations) == PLAIN else draw(st.integers(0, 1)),
    )


SHAPES = shapes()


def parameters(kind: Kind) -> tuple[float, float]:
    """Some that ``kind`` may have."""
    if kind == "clip":
        return -0.5, 0.75
    return (-1.0 if kind == "mish" else 0.2), 0.5


@st.composite
def problems(draw: st.DrawFn, shape: st.SearchStrategy[Convolution] = SHAPES) -> Problem:
    parts = draw(st.sampled_from(["", "bias", "addend", "bias addend"]))
    problem = make_problem(draw(shape), draw(st.integers(0, 99)), parts)
    kind = draw(st.sampled_from([None, *STEADY]))
    activation = None if kind is None else Activation(kind, *parameters(kind))
    last = draw(st.booleans())
    return replace(problem, it=replace(problem.it, adds_last=last, activation=activation))


def correlate(it: Convolution, x: Array, w: Array) -> Array:
    """The sums of a convolution in float64."""
    windows, batch = it.windows, it.x.shape[0]
    outs = windows.result
    around = [
        (axis.before, max(axis.needed(0, made)[1] - n, 0))
        for axis, made, n in zip(windows.axes, outs, windows.size, strict=True)
    ]
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *around])
    parts = padded.reshape(batch, it.groups, -1, *padded.shape[2:])
    weights = w.astype(np.float64).reshape(it.groups, -1, *w.shape[1:])
    total = np.zeros((batch, it.groups, weights.shape[1], *outs))
    for row in range(windows.kernel[0]):
        for column in range(windows.kernel[1]):
            rows = np.arange(outs[0]) * windows.strides[0] + row * windows.dilations[0]
            columns = np.arange(outs[1]) * windows.strides[1] + column * windows.dilations[1]
            part = parts[:, :, :, rows[:, None], columns]
            total += np.einsum("gmc,bgcyx->bgmyx", weights[..., row, column], part)
    return total.reshape(it.y.shape)


def launches(
    problem: Problem, algorithm: Algorithm, *, tile: Tile | None = None, multiprocessors: int = 8
) -> tuple[tuple[KernelLaunch, ...], int]:
    """The launches, and the bytes of scratch that they need."""
    places = {
        name: DevicePointer("input", at) for at, name in enumerate(("x", "w", "bias", "addend"))
    }
    scope = Scope(ConvolutionSettings(multiprocessors), places | {"y": DevicePointer("output")})
    return scope.placed(convolve(problem.it, algorithm, scope, tile))


def run(
    kernels: Kernels,
    problem: Problem,
    algorithm: Algorithm | None = None,
    *,
    tile: Tile | None = None,
    misaligned: Sequence[int] = (),
) -> Array:
    """The output, of memory in which nothing else was written.

    ``misaligned``: floats by which x, w, bias, addend and y miss a multiple of 16 bytes.
    """
    calls, n_bytes = launches(problem, algorithm or Algorithm("direct"), tile=tile)
    inputs = (problem.x, problem.w, problem.bias, problem.addend)
    memory = HostMemory(inputs, [problem.it.y.shape], n_bytes, misaligned)
    memory.run(kernels, calls)
    return memory.outputs[0]


def check(problem: Problem, result: Array, unit: float = EPSILON, room: float = 1.0) -> None:
    """Compare with float64, within what ``depth`` roundings by ``unit`` can do to a sum."""
    it = problem.it
    x, w = problem.x.astype(np.float64), problem.w.astype(np.float64)
    sums = correlate(it, x, w)
    doubt = (it.depth + 4) * unit * room * correlate(it, np.abs(x), np.abs(w))
    if problem.bias is not None:
        sums += problem.bias[:, None, None]
    addend = 0.0 if problem.addend is None else problem.addend.astype(np.float64)
    first = problem.addend is not None and not it.adds_last
    sums += addend if first else 0.0
    expected = activate(sums, it.activation) + (0.0 if first else addend)
    slope = np.abs(expected) + 1.2  # of the steepest activation, exp, or of any other
    margin = slope * (doubt + 8 * EPSILON * (np.abs(sums) + np.abs(addend) + 1))
    assert (np.abs(result - expected) <= margin).all()
