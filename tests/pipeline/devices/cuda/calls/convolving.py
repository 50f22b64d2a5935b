"""Convolutions for tests: drawn shapes, an oracle in float64, and runs on the host with guards."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.devices.cuda.call import Call, Pointer
from pipeline.devices.cuda.calls.activation import Activation
from pipeline.devices.cuda.calls.convolutions.tiled import (
    Algorithm,
    Convolution,
    Epilogue,
    convolve,
    scratch_bytes,
)
from pipeline.devices.cuda.calls.convolutions.tiles import Tile
from tests.examples import examples
from tests.pipeline.devices.cuda.activations import activate
from tests.pipeline.devices.cuda.guarded_memory import HostMemory
from tests.pipeline.devices.cuda.space import Kernels

Array = NDArray[Any]
EPSILON = 2.0**-24
#: Of float16; two factors are rounded.
HALF_EPSILON = 2.0**-11
quick = examples(40, many=1000, database=None)


@dataclass(frozen=True)
class Problem:
    """A convolution with numbers; ``activation`` has its parameters with it."""

    shape: Convolution
    x: Array
    w: Array
    bias: Array | None = None
    residual: Array | None = None
    residual_last: bool = False
    activation: tuple[Activation, float, float] = (Activation.NONE, 0.0, 0.0)

    def chunk(self, first: int, last: int) -> "Problem":
        """Filters first to last of a problem with one group."""
        return replace(
            self,
            shape=replace(self.shape, filters=last - first),
            w=self.w[first:last],
            bias=None if self.bias is None else self.bias[first:last],
            residual=None if self.residual is None else self.residual[:, first:last],
        )


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def make_problem(shape: Convolution, seed: int = 0, parts: str = "") -> Problem:
    """A problem with seeded numbers; ``parts``: which of "bias", "residual" it has."""
    depth = shape.channels // shape.groups
    output = (shape.batch, shape.filters, shape.out_height, shape.out_width)
    return Problem(
        shape,
        numbers(seed, shape.batch, shape.channels, shape.height, shape.width),
        numbers(seed + 1, shape.filters, depth, *shape.kernel),
        numbers(seed + 2, shape.filters) if "bias" in parts else None,
        numbers(seed + 3, *output) if "residual" in parts else None,
    )


def natural(size: int, kernel: int, stride: int, pad: int, dilation: int) -> int:
    """Outputs along one axis with the same padding on both sides."""
    return (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1


def make_shape(
    channels: int,
    size: tuple[int, int],
    filters: int,
    kernel: tuple[int, int] = (1, 1),
    *,
    strides: tuple[int, int] = (1, 1),
    pads: tuple[int, int] = (0, 0),
    dilations: tuple[int, int] = (1, 1),
    batch: int = 1,
    groups: int = 1,
    more: int = 0,
) -> Convolution:
    """``more``: outputs beyond the natural ones, whose windows lie in padding below and right."""
    rows, columns = (
        natural(*axis) + more for axis in zip(size, kernel, strides, pads, dilations, strict=True)
    )
    return Convolution(
        batch=batch,
        channels=channels,
        height=size[0],
        width=size[1],
        filters=filters,
        kernel=kernel,
        strides=strides,
        pads=pads,
        dilations=dilations,
        out_height=rows,
        out_width=columns,
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


@st.composite
def problems(draw: st.DrawFn, shape: st.SearchStrategy[Convolution] = SHAPES) -> Problem:
    parts = draw(st.sampled_from(["", "bias", "residual", "bias residual"]))
    problem = make_problem(draw(shape), draw(st.integers(0, 99)), parts)
    activation = draw(st.sampled_from(Activation))
    parameters = (-0.5, 0.75) if activation is Activation.CLIP else (0.2, 0.5)
    return replace(problem, residual_last=draw(st.booleans()), activation=(activation, *parameters))


def correlate(shape: Convolution, x: Array, w: Array) -> Array:
    """The sums of a convolution in float64."""
    (top, left), outs = shape.pads, (shape.out_height, shape.out_width)
    reach = [
        (out - 1) * stride + dilation * (extent - 1) + 1
        for out, stride, dilation, extent in zip(
            outs, shape.strides, shape.dilations, shape.kernel, strict=True
        )
    ]
    padded = np.zeros(
        (*x.shape[:2], max(reach[0], top + shape.height), max(reach[1], left + shape.width))
    )
    padded[:, :, top : top + shape.height, left : left + shape.width] = x
    parts = padded.reshape(shape.batch, shape.groups, -1, *padded.shape[2:])
    weights = w.astype(np.float64).reshape(shape.groups, -1, *w.shape[1:])
    total = np.zeros((shape.batch, shape.groups, weights.shape[1], *outs))
    for row in range(shape.kernel[0]):
        for column in range(shape.kernel[1]):
            rows = np.arange(outs[0]) * shape.strides[0] + row * shape.dilations[0]
            columns = np.arange(outs[1]) * shape.strides[1] + column * shape.dilations[1]
            part = parts[:, :, :, rows[:, None], columns]
            total += np.einsum("gmc,bgcyx->bgmyx", weights[..., row, column], part)
    return total.reshape(shape.batch, shape.filters, *outs)


def launches(
    problem: Problem, algorithm: Algorithm, *, tile: Tile | None = None, multiprocessors: int = 8
) -> list[Call]:
    epilogue = Epilogue(
        None if problem.bias is None else Pointer("input", 2),
        None if problem.residual is None else Pointer("input", 3),
        problem.residual_last,
        *problem.activation,
    )
    return convolve(
        *(problem.shape, Pointer("input", 0), Pointer("input", 1), Pointer("output", 0), epilogue),
        scratch=Pointer("inner", 0, 16),
        algorithm=algorithm,
        multiprocessors=multiprocessors,
        tile=tile,
    )


def run(
    kernels: Kernels,
    problem: Problem,
    algorithm: Algorithm | None = None,
    *,
    tile: Tile | None = None,
    misaligned: Sequence[int] = (),
) -> Array:
    """The output, of memory in which nothing else was written.

    ``misaligned``: floats by which x, w, bias, residual and y miss a multiple of 16 bytes.
    """
    algorithm = algorithm or Algorithm("direct")
    shape = problem.shape
    output = (shape.batch, shape.filters, shape.out_height, shape.out_width)
    inputs = (problem.x, problem.w, problem.bias, problem.residual)
    memory = HostMemory(inputs, [output], 16 + scratch_bytes(shape, algorithm), misaligned)
    memory.run(kernels, launches(problem, algorithm, tile=tile))
    return memory.outputs[0]


def check(problem: Problem, result: Array, unit: float = EPSILON, room: float = 1.0) -> None:
    """Compare with float64, within what ``depth`` roundings by ``unit`` can do to a sum."""
    shape = problem.shape
    x, w = problem.x.astype(np.float64), problem.w.astype(np.float64)
    sums = correlate(shape, x, w)
    doubt = (shape.depth + 4) * unit * room * correlate(shape, np.abs(x), np.abs(w))
    if problem.bias is not None:
        sums += problem.bias[:, None, None]
    residual = 0.0 if problem.residual is None else problem.residual.astype(np.float64)
    first = problem.residual is not None and not problem.residual_last
    sums += residual if first else 0.0
    expected = activate(sums, *problem.activation) + (0.0 if first else residual)
    slope = np.abs(expected) + 1.2  # of the steepest activation, exp, or of any other
    margin = slope * (doubt + 8 * EPSILON * (np.abs(sums) + np.abs(residual) + 1))
    assert (np.abs(result - expected) <= margin).all()
