"""Fully connected layers and products of matrices."""

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.network.activations import Activation, Arithmetic, Kind
from models.network.node import NamedTensor, UnsuitedError
from models.network.operators.reading import MatrixProduct
from pipeline.devices.cuda.call import DevicePointer
from pipeline.devices.cuda.operators.launches import activation_arguments
from pipeline.devices.cuda.operators.products import product
from pipeline.devices.cuda.scope import ConvolutionSettings, Scope
from pipeline.devices.interface.cuda import ACTIVATIONS, ARITHMETIC
from tests.oracle.functions import activate
from tests.pipeline.devices.cuda.guarded_memory import HostMemory
from tests.pipeline.devices.cuda.operators.convolving import EPSILON, numbers, quick
from tests.pipeline.devices.cuda.space import Kernels

Array = NDArray[Any]
PLACES = {name: DevicePointer("input", index) for index, name in enumerate("abc")} | {
    "y": DevicePointer("output", 0)
}

activations = st.sampled_from([None, Activation("leaky_relu", 0.3), Activation("mish", 1.0)])
scales = st.sampled_from([1.0, 0.5, -1.5])
offsets = st.tuples(*[st.integers(0, 3)] * 4)


def check(
    result: Array, sums: Array, doubt: Array, added: Array | float, activation: Activation | None
) -> None:
    """Compare with float64; ``doubt``: products without their signs, times their number."""
    expected = activate(sums + added, activation)
    margin = 1.2 * EPSILON * (doubt + 8 * (np.abs(sums) + np.abs(added) + 1))
    assert (np.abs(result - expected) <= margin).all()


def value(name: str, shape: tuple[int, ...]) -> NamedTensor:
    return NamedTensor(name=name, dtype="float32", shape=shape)


def multiply(
    kernels: Kernels,
    factors: Sequence[Array],
    c: Array | None,
    shape: tuple[int, ...],
    misaligned: tuple[int, ...] = (),
    **options: Any,
) -> Array:
    """Run the launches of a product with a result of ``shape``."""
    a, b = factors
    addend = None if c is None else value("c", c.shape)
    left, right, y = value("a", a.shape), value("b", b.shape), value("y", shape)
    it = MatrixProduct(a=left, b=right, y=y, addend=addend, **options)
    memory = HostMemory([a, b, c], [shape], misaligned=misaligned)
    memory.run(kernels, product(it, Scope(ConvolutionSettings(), PLACES)))
    return memory.outputs[0]


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
    shape = (len(x), len(w))
    return multiply(kernels, (x, w), bias, shape, misaligned, turned=(False, True), **options)


@quick
@given(layers(), scales, scales, activations)
def test_fully_connected(
    kernels: Kernels,
    layer: tuple[Array, Array, Array | None],
    scale: float,
    bias_scale: float,
    activation: Activation | None,
) -> None:
    options: dict[str, Any] = {"scale": scale, "addend_scale": bias_scale, "activation": activation}
    result = connect(kernels, layer, **options)
    x, w = layer[0].astype(np.float64), layer[1].astype(np.float64)
    doubt = 1.5 * (x.shape[1] + 8) * (np.abs(x) @ np.abs(w).T)
    bias = 0.0 if layer[2] is None else bias_scale * layer[2].astype(np.float64)
    check(result, scale * (x @ w.T), doubt, bias, activation)


@quick
@given(st.data(), layers(), activations, offsets)
def test_bits_of_rows_do_not_know_the_chunk(
    kernels: Kernels,
    data: st.DataObject,
    layer: tuple[Array, Array, Array | None],
    activation: Activation | None,
    misaligned: tuple[int, ...],
) -> None:
    x, w, bias = layer
    first = data.draw(st.integers(0, len(w) - 1))
    last = data.draw(st.integers(first + 1, len(w)))
    chunk = (x, w[first:last], None if bias is None else bias[first:last])
    whole = connect(kernels, layer, activation=activation)
    part = connect(kernels, chunk, misaligned, activation=activation)
    assert part.tobytes() == whole[:, first:last].tobytes()


@quick
@given(st.data(), activations, scales, scales, offsets)
def test_multiply(
    kernels: Kernels,
    data: st.DataObject,
    activation: Activation | None,
    scale: float,
    addend_scale: float,
    misaligned: tuple[int, ...],
) -> None:
    rows, columns, depth = (data.draw(st.integers(1, 90)) for _ in range(3))
    flags = data.draw(st.tuples(st.booleans(), st.booleans()))
    own = data.draw(st.tuples(st.booleans(), st.booleans()))
    batch = data.draw(st.integers(1, 3)) if any(own) else 1
    a, b = numbers(1, batch, rows, depth), numbers(2, batch, depth, columns)
    a, b = a if own[0] else a[:1], b if own[1] else b[:1]
    stored = [
        np.ascontiguousarray(np.swapaxes(matrix, 1, 2)) if flag else matrix
        for matrix, flag in zip((a, b), flags, strict=True)
    ]
    extents = data.draw(
        st.sampled_from([(1, 1, 1), (1, 1, columns), (1, rows, 1), (batch, rows, columns)])
    )
    c = numbers(3, *extents) if data.draw(st.booleans()) else None
    options: dict[str, Any] = {
        "scale": scale,
        "addend_scale": addend_scale,
        "activation": activation,
    }
    shape = (batch, rows, columns)
    result = multiply(kernels, stored, c, shape, misaligned, turned=flags, **options)
    wide = [matrix.astype(np.float64) for matrix in (a, b)]
    doubt = 1.5 * (depth + 4) * (np.abs(wide[0]) @ np.abs(wide[1]))
    term = 0.0 if c is None else addend_scale * c.astype(np.float64)
    check(result, scale * (wide[0] @ wide[1]), doubt, term, activation)


# How launches are written down.


def test_kernels_have_names_of_the_catalogue_and_others_are_refused() -> None:
    assert set(ACTIVATIONS) <= {"none", *get_args(Kind)}
    assert set(ARITHMETIC) <= set(get_args(Arithmetic))
    with pytest.raises(UnsuitedError, match="no kernel has cosine"):
        activation_arguments(Activation("cosine"))  # type: ignore[arg-type]
