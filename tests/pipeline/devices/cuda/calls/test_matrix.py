"""Fully connected layers and products of matrices."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.devices.cuda.call import Pointer
from pipeline.devices.cuda.calls.activation import Activated, Activation
from pipeline.devices.cuda.calls.matrix import (
    Addend,
    Factors,
    fully_connected,
    multiply,
)
from tests.pipeline.devices.cuda.activations import activate
from tests.pipeline.devices.cuda.calls.convolving import EPSILON, numbers, quick
from tests.pipeline.devices.cuda.guarded_memory import HostMemory
from tests.pipeline.devices.cuda.space import Kernels

Array = NDArray[Any]
A, B, C = (Pointer("input", index) for index in range(3))
Y = Pointer("output", 0)

activations = st.sampled_from([Activation.NONE, Activation.LEAKY_RELU, Activation.MISH]).map(
    lambda activation: Activated(activation, 0.3, 0.0)
)
scales = st.sampled_from([1.0, 0.5, -1.5])
offsets = st.tuples(*[st.integers(0, 3)] * 4)


def check(
    result: Array, sums: Array, doubt: Array, added: Array | float, activated: Activated
) -> None:
    """Compare with float64; ``doubt``: products without their signs, times their number."""
    expected = activate(sums + added, activated.activation, activated.alpha, activated.beta)
    margin = 1.2 * EPSILON * (doubt + 8 * (np.abs(sums) + np.abs(added) + 1))
    assert (np.abs(result - expected) <= margin).all()


@st.composite
def layers(draw: st.DrawFn) -> tuple[Array, Array, Array | None]:
    images, outputs = draw(st.sampled_from([1, 1, 2, 4, 7, 20])), draw(st.integers(1, 70))
    depth = draw(st.one_of(st.integers(1, 70), st.integers(1, 150).map(lambda n: 4 * n)))
    seed = draw(st.integers(0, 99))
    bias = numbers(seed + 2, outputs) if draw(st.booleans()) else None
    return numbers(seed, images, depth), numbers(seed + 1, outputs, depth), bias


def connect(
    kernels: Kernels,
    layer: tuple[Array, Array, Array | None],
    misaligned: tuple[int, ...] = (),
    **options: Any,
) -> Array:
    x, w, bias = layer
    memory = HostMemory(layer, [(len(x), len(w))], misaligned=misaligned)
    sizes = {"images": len(x), "depth": x.shape[1], "outputs": len(w)}
    memory.run(kernels, [fully_connected(A, B, Y, None if bias is None else C, **sizes, **options)])
    return memory.outputs[0]


@quick
@given(layers(), scales, scales, activations)
def test_fully_connected(
    kernels: Kernels,
    layer: tuple[Array, Array, Array | None],
    scale: float,
    bias_scale: float,
    activated: Activated,
) -> None:
    result = connect(kernels, layer, scale=scale, bias_scale=bias_scale, activated=activated)
    x, w = layer[0].astype(np.float64), layer[1].astype(np.float64)
    doubt = 1.5 * (x.shape[1] + 8) * (np.abs(x) @ np.abs(w).T)
    bias = 0.0 if layer[2] is None else bias_scale * layer[2].astype(np.float64)
    check(result, scale * (x @ w.T), doubt, bias, activated)


@quick
@given(st.data(), layers(), activations, offsets)
def test_bits_of_rows_do_not_know_the_chunk(
    kernels: Kernels,
    data: st.DataObject,
    layer: tuple[Array, Array, Array | None],
    activated: Activated,
    misaligned: tuple[int, ...],
) -> None:
    x, w, bias = layer
    first = data.draw(st.integers(0, len(w) - 1))
    last = data.draw(st.integers(first + 1, len(w)))
    chunk = (x, w[first:last], None if bias is None else bias[first:last])
    whole = connect(kernels, layer, activated=activated)
    part = connect(kernels, chunk, misaligned, activated=activated)
    assert part.tobytes() == whole[:, first:last].tobytes()


@quick
@given(st.data(), activations, scales, scales, offsets)
def test_multiply(
    kernels: Kernels,
    data: st.DataObject,
    activated: Activated,
    scale: float,
    addend_scale: float,
    misaligned: tuple[int, ...],
) -> None:
    rows, columns, depth = (data.draw(st.integers(1, 90)) for _ in range(3))
    batch = data.draw(st.integers(1, 3))
    flags = data.draw(st.tuples(st.booleans(), st.booleans()))
    own = data.draw(st.tuples(st.booleans(), st.booleans()))
    a, b = numbers(1, batch, rows, depth), numbers(2, batch, depth, columns)
    a, b = a if own[0] else a[:1], b if own[1] else b[:1]
    stored = tuple(
        np.ascontiguousarray(np.swapaxes(matrix, 1, 2)) if flag else matrix
        for matrix, flag in zip((a, b), flags, strict=True)
    )
    extents = data.draw(
        st.sampled_from([(1, 1, 1), (1, 1, columns), (1, rows, 1), (batch, rows, columns)])
    )
    c = numbers(3, *extents) if data.draw(st.booleans()) else None
    strides = tuple(
        int(np.prod(extents[axis + 1 :])) if extents[axis] > 1 else 0 for axis in range(3)
    )
    factors = Factors(
        *(rows, columns, depth, batch, flags),
        strides=(rows * depth if own[0] else 0, depth * columns if own[1] else 0),
    )
    added = None if c is None else Addend(C, (strides[0], strides[1], strides[2]), addend_scale)
    memory = HostMemory([*stored, c], [(batch, rows, columns)], misaligned=misaligned)
    call = multiply(A, B, Y, factors, addend=added, scale=scale, activated=activated)
    memory.run(kernels, [call])
    wide = [matrix.astype(np.float64) for matrix in (a, b)]
    doubt = 1.5 * (depth + 4) * (np.abs(wide[0]) @ np.abs(wide[1]))
    term = 0.0 if c is None else addend_scale * c.astype(np.float64)
    check(memory.outputs[0], scale * (wide[0] @ wide[1]), doubt, term, activated)
