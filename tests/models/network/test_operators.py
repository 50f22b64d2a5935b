"""What families read from nodes, beside ONNX's own evaluator of the same nodes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper
from onnx.reference import ReferenceEvaluator

from models.graphs.reader import graph_of
from models.network.catalogue import read_operator
from models.network.fields import Array
from models.network.node import KnownTensors, Node, UnsuitedError
from models.network.operators.movement import moved
from models.network.operators.reading import (
    Convolution,
    Gather,
    Movement,
    OnBytes,
    Operator,
    Pad,
    Pooling,
    Reshape,
    Resize,
)
from tests.examples import over

Arrays = Mapping[str, NDArray[Any]]


def node_of(proto: onnx.NodeProto, opsets: Mapping[str, int]) -> Node:
    """Return ``proto`` as a record."""
    imports = [helper.make_opsetid(*each) for each in opsets.items()]
    model = helper.make_model(helper.make_graph([proto], "g", [], []), opset_imports=imports)
    return graph_of(model).nodes[0]


def known(arrays: Arrays) -> KnownTensors:
    """Return what is known where all of ``arrays`` are constants."""

    def array(name: str) -> Array | None:
        found = arrays.get(name)
        return None if found is None else Array(dtype=found.dtype.name, shape=found.shape)

    return KnownTensors(array, arrays.get)


def made(operator: Operator, arrays: Arrays) -> list[NDArray[Any]]:
    """Return what an operator that only moves elements makes."""
    match operator:
        case Reshape():
            return [arrays[operator.x.name].reshape(operator.y.shape)]
        case Gather():
            copies = tuple(operator.copies())
        case Movement():
            return moved(operator, [arrays[copy.x.name] for copy in operator.copies])
        case Resize():
            found = arrays[operator.x.name].astype(np.float64)
            for axis, resized in enumerate(operator.axes):
                taken = np.take(found, resized.indices, axis)
                weights = (
                    np.ones_like(resized.indices) if resized.weights is None else resized.weights
                )
                found = np.moveaxis(taken, axis + 1, -1) if taken.ndim > found.ndim else taken
                found = (np.moveaxis(found, axis, -2) * weights).sum(-1)
                found = np.moveaxis(found, -1, axis)
            return [found]
        case _:
            raise AssertionError(operator)
    move = Movement(copies=copies, ys=(operator.y,))
    return moved(move, [arrays[copy.x.name] for copy in copies])


def check(
    kind: str,
    arrays: dict[str, NDArray[Any]],
    n_outputs: int = 1,
    opset: int = 18,
    **attributes: Any,
) -> None:
    """Compare what is read of a node ``kind`` on ``arrays`` with what ONNX makes of it."""
    names = [f"y{number}" for number in range(n_outputs)]
    proto = helper.make_node(kind, list(arrays), names, **attributes)
    operator = read_operator(node_of(proto, {"": opset}), known(arrays))
    expected: Any = ReferenceEvaluator(proto, opsets={"": opset}).run(None, arrays)
    found = made(operator, arrays)
    assert [array.shape for array in found] == [array.shape for array in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def image(*shape: int) -> NDArray[Any]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def numbers(*values: int) -> NDArray[Any]:
    return np.array(values, np.int64)


shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


@given(shapes, st.data())
def test_movement_of_any_shape(shape: tuple[int, ...], data: st.DataObject) -> None:
    x, rank = image(*shape), len(shape)
    check("Transpose", {"x": x}, perm=data.draw(st.permutations(range(rank))))
    axis = data.draw(st.integers(-rank, rank - 1))
    check("Concat", {"x": x, "z": x + 100}, axis=axis)
    check("Flatten", {"x": x}, axis=data.draw(st.integers(-rank, rank)))
    places = data.draw(st.lists(st.integers(-shape[axis], shape[axis] - 1), min_size=1, max_size=6))
    check("Gather", {"x": x, "i": numbers(*places)}, axis=axis)
    check("Tile", {"x": x, "n": numbers(*data.draw(_of(rank, st.integers(1, 3))))})
    check("Expand", {"x": x, "n": numbers(*(n if n > 1 else 3 for n in shape))})
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    long = image(*shape[:axis], sum(sizes), *shape[axis:][1:])
    check("Split", {"x": long, "n": numbers(*sizes)}, len(sizes), axis=axis % rank)


def _of(count: int, one: st.SearchStrategy[int]) -> st.SearchStrategy[list[int]]:
    return st.lists(one, min_size=count, max_size=count)


@given(st.integers(1, 6), st.integers(-8, 8), st.integers(-8, 8), st.sampled_from((-3, -1, 1, 2)))
def test_slices_or_nothing_is_left(length: int, start: int, end: int, step: int) -> None:
    x = image(2, length)
    bounds = {"x": x, "a": numbers(start), "b": numbers(end), "c": numbers(1), "d": numbers(step)}
    if x[:, start : None if step < 0 and end < -length else end : step].size:
        check("Slice", bounds)
    else:
        with pytest.raises(UnsuitedError, match="nothing is left of the input"):
            check("Slice", bounds)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_blocks_of_pixels(mode: str) -> None:
    check("DepthToSpace", {"x": image(2, 8, 3, 5)}, blocksize=2, mode=mode)
    check("SpaceToDepth", {"x": image(2, 3, 4, 6)}, opset=28, blocksize=2, mode=mode)


@given(_of(4, st.integers(-1, 3)), st.floats(-2, 2, width=32))
def test_what_padding_keeps(pads: list[int], value: float) -> None:
    arrays = {"x": image(4, 5), "p": numbers(*pads), "v": np.array(value, np.float32)}
    proto = helper.make_node("Pad", list(arrays), ["y"])
    operator = read_operator(node_of(proto, {"": 18}), known(arrays))
    assert isinstance(operator, Pad)
    found = np.full(operator.y.shape, operator.value, np.float32)
    copy = operator.kept()
    inside = moved(Movement(copies=(copy,), ys=(copy.y,)), [arrays["x"]])[0]
    held = moved(Movement(copies=(copy,), ys=(copy.y,)), [np.ones_like(arrays["x"])])[0] == 1
    cut = [(max(-a, 0), n - max(-b, 0)) for n, a, b in zip((4, 5), pads[:2], pads[2:], strict=True)]
    kept = arrays["x"][tuple(slice(*each) for each in cut)]
    grown = [(max(a, 0), max(b, 0)) for a, b in zip(pads[:2], pads[2:], strict=True)]
    expected = np.pad(kept, grown, constant_values=value)
    assert found.shape == expected.shape
    place = np.unravel_index(copy.place, expected.shape)
    part = tuple(slice(at, at + n) for at, n in zip(place, copy.sizes, strict=True))
    np.testing.assert_array_equal(expected[part], kept)
    np.testing.assert_array_equal(inside[part], kept)
    assert held[part].all()


@over("mode", ["nearest", "linear", "cubic"])
@over("way", ["half_pixel", "align_corners", "asymmetric"])
@over("scale", [2.0, 0.5, 1.5])
def test_resized(mode: str, way: str, scale: float) -> None:
    x = image(1, 2, 6, 4)
    arrays = {"x": x, "r": np.zeros(0, np.float32), "s": np.array([1, 1, scale, scale], np.float32)}
    proto = helper.make_node(
        "Resize", list(arrays), ["y"], mode=mode, coordinate_transformation_mode=way
    )
    operator = read_operator(node_of(proto, {"": 18}), known(arrays))
    (expected,) = list(ReferenceEvaluator(proto, opsets={"": 18}).run(None, arrays))
    np.testing.assert_allclose(made(operator, arrays)[0], expected, rtol=1e-4, atol=1e-4)
    assert isinstance(operator, Resize)
    assert operator.of_planes
    assert (operator.factors is not None) == (mode == "nearest" and scale == 2.0)


def test_what_is_not_known_says_why() -> None:
    with pytest.raises(UnsuitedError, match="no such operator is known"):
        read_operator(Node("NonMaxSuppression", ("x",), ("y",), {}), known({}))
    with pytest.raises(UnsuitedError, match="a shape is not known"):
        read_operator(Node("Relu", ("x",), ("y",), {}, 18), known({}))


@over("kind", ["Conv", "MaxPool", "AveragePool", "Upsample"])
def test_blocked_operators_are_read_as_the_plain_ones(kind: str) -> None:
    arrays = {"x": np.zeros((1, 16, 9, 8), np.float32)}
    given: dict[str, Any] = {"pads": [1, 0, 1, 2], "strides": [2, 1], "kernel_shape": [3, 3]}
    if kind == "Conv":
        arrays["w"] = np.zeros((32, 16, 3, 3), np.float32)
    elif kind == "Upsample":
        given = {"scales": [1, 1, 2, 3]}
    node = helper.make_node(kind, list(arrays), ["y"], **given)
    plain = read_operator(node_of(node, {"": 9}), known(arrays))
    node.domain = "com.microsoft.nchwc"
    blocked = read_operator(node_of(node, {}), known(arrays))
    if isinstance(blocked, Resize) and isinstance(plain, Resize):
        assert blocked.factors == plain.factors == (1, 1, 2, 3)
    else:
        assert blocked == plain


def _on_bytes(
    kind: str, arrays: dict[str, NDArray[Any]], domain: str = "com.microsoft", **attributes: Any
) -> Operator:
    proto = helper.make_node(kind, list(arrays), ["y"], domain=domain, **attributes)
    return read_operator(node_of(proto, {"": 17, domain: 1}), known(arrays))


def _scales(name: str) -> dict[str, NDArray[Any]]:
    """Return a scale and a zero point of bytes ``name``."""
    return {f"{name}/scale": np.array(1, np.float32), f"{name}/zero": np.array(0, np.uint8)}


def test_a_convolution_of_bytes_has_channels_in_front_however_they_lie() -> None:
    x, weight = np.zeros((1, 5, 6, 4), np.uint8), np.zeros((8, 4, 3, 3), np.int8)
    arrays = {"x": x, **_scales("x"), "w": weight, **_scales("w"), **_scales("y")}
    arrays["bias"] = np.zeros(8, np.int32)
    found = _on_bytes("QLinearConv", arrays, channels_last=1, pads=[1, 1, 1, 1])
    assert isinstance(found, OnBytes)
    assert isinstance(found.operator, Convolution)
    assert found.last
    assert (found.operator.x.shape, found.operator.y.shape) == ((1, 4, 5, 6), (1, 8, 5, 6))
    assert (found.y.shape, found.y.dtype) == ((1, 5, 6, 8), "uint8")
    assert found.operator.bias is not None
    assert [scale.zero.name for scale in found.scales] == ["x/zero", "w/zero", "y/zero"]


@pytest.mark.parametrize("turned", [0, 1])
def test_a_product_of_bytes_is_a_convolution_of_a_row_of_pixels(turned: int) -> None:
    x, weight = np.zeros((5, 4), np.uint8), np.zeros((8, 4) if turned else (4, 8), np.uint8)
    arrays = {"x": x, **_scales("x"), "w": weight, **_scales("w")}
    bias = {"b": np.zeros(8, np.int32)}
    found = _on_bytes("QGemm", {**arrays, **bias, **_scales("y")}, transB=turned)
    assert isinstance(found, OnBytes)
    assert isinstance(found.operator, Convolution)
    assert (found.operator.x.shape, found.y.shape) == ((1, 4, 1, 5), (5, 8))
    assert (found.operator.filters, found.by_inputs) == (8, not turned)
    with pytest.raises(UnsuitedError, match="alpha"):
        _on_bytes("QGemm", {**arrays, **bias, **_scales("y")}, transB=turned, alpha=2.0)


def test_maxima_of_bytes_and_of_floats() -> None:
    x = np.zeros((1, 4, 5, 6), np.int8)
    last = _on_bytes("NhwcMaxPool", {"x": x}, kernel_shape=[2, 2])
    first = _on_bytes("MaxPool", {"x": x}, "", kernel_shape=[2, 2])
    assert isinstance(last, OnBytes)
    assert isinstance(first, OnBytes)
    assert (last.y.shape, first.y.shape) == ((1, 3, 4, 6), (1, 4, 4, 5))
    assert last.y.dtype == "int8"
    floats = _on_bytes("MaxPool", {"x": x.astype(np.float32)}, "", kernel_shape=[2, 2])
    assert isinstance(floats, Pooling)
