"""Operators that move elements: lowered, beside ONNX Runtime; and the copies that they are made of."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.network.node import NamedTensor, UnsuitedError
from models.network.operators.movement import Copy, strides_of
from pipeline.devices.cuda.call import DevicePointer, KernelLaunch
from pipeline.devices.cuda.operators.copies import copied, copy_bytes
from pipeline.devices.cuda.operators.launches import collapse
from pipeline.devices.cuda.scope import ConvolutionSettings, Scope
from tests.examples import over
from tests.pipeline.devices.cuda.lowering.lowered import Array, agree
from tests.pipeline.devices.cuda.space import placed, some_kernels
from tests.pipeline.devices.nodes import drawn, ints, numbers

pytestmark = pytest.mark.usefixtures("kernels")

X = numbers(2, 6, 5, 7)
DTYPES = [np.int8, np.float16, np.float32, np.int64]


SCOPE = Scope(ConvolutionSettings(), {"x": DevicePointer("input"), "y": DevicePointer("output")})


def _value(name: str, array: Array) -> NamedTensor:
    return NamedTensor(name=name, dtype=array.dtype.name, shape=array.shape)


@st.composite
def views(draw: st.DrawFn) -> tuple[list[int], list[slice], list[int]]:
    """Draw a shape, a cut of each axis, and an order of axes."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    cuts = []
    for n in shape:
        step = draw(st.sampled_from([1, 1, 2, -1, -2]))
        first = draw(st.integers(0, n - 1))
        cuts.append(slice(first, None, step))
    return shape, cuts, draw(st.permutations(range(len(shape))))


@given(views(), st.sampled_from(DTYPES))
@drawn
def test_copy_is_what_numpy_makes_of_a_view(
    drawn: tuple[list[int], list[slice], list[int]], dtype: type
) -> None:
    shape, cuts, order = drawn
    x: Array = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    view = x[tuple(cuts)].transpose(order)
    target: Array = np.full(view.size + 8, 99, dtype)
    copy = Copy(
        x=_value("x", x),
        y=_value("y", target),
        sizes=view.shape,
        read=tuple(step // x.itemsize for step in view.strides),
        written=strides_of(view.shape),
        start=(view.ctypes.data - x.ctypes.data) // x.itemsize,
        place=4,
    )
    _run(copied(copy, SCOPE), x, target)
    np.testing.assert_array_equal(target[4:-4].reshape(view.shape), view)
    assert (target[:4] == 99).all()
    assert (target[-4:] == 99).all()


@given(st.integers(1, 200), st.integers(0, 17), st.integers(0, 17))
@drawn
def test_bytes_are_copied_from_and_to_any_address(n_bytes: int, source: int, target: int) -> None:
    x = np.random.default_rng(n_bytes).integers(0, 256, n_bytes + 32).astype(np.uint8)
    y = np.zeros(n_bytes + 32, np.uint8)
    _run(
        copy_bytes(DevicePointer("input", 0, source), DevicePointer("output", 0, target), n_bytes),
        x,
        y,
    )
    np.testing.assert_array_equal(y[target : target + n_bytes], x[source : source + n_bytes])
    assert not y[:target].any()
    assert not y[target + n_bytes :].any()


@given(views())
@drawn
def test_joined_axes_pass_the_same_elements(
    drawn: tuple[list[int], list[slice], list[int]],
) -> None:
    shape, _, order = drawn
    strides = strides_of(shape)
    sizes, steps = [shape[i] for i in order], [strides[i] for i in order]
    layout = collapse(sizes, steps)
    assert layout.rank <= max(sum(n > 1 for n in sizes), 1)
    places = itertools.product(*(range(n) for n in reversed(layout.sizes)))
    passed = [
        sum(i * step for i, step in zip(reversed(place), layout.strides[0], strict=True))
        for place in places
    ]
    wanted = np.arange(np.prod(shape)).reshape(shape).transpose(order).ravel()
    assert passed == wanted.tolist()


def test_too_many_axes() -> None:
    x = np.empty((2,) * 7, np.float32)
    steps = strides_of(x.shape)
    copy = Copy(x=_value("x", x), y=_value("y", x), sizes=x.shape, read=steps[::-1], written=steps)
    with pytest.raises(UnsuitedError, match="7 axes"):
        copied(copy, SCOPE)


@over("dtype", DTYPES)
def test_transpose(dtype: type) -> None:
    x: Array = X.astype(dtype)
    agree("Transpose", [x])
    agree("Transpose", [x], {"perm": [0, 2, 3, 1]})
    agree("Transpose", [np.arange(240).reshape(1, 2, 3, 4, 5, 2)], {"perm": [5, 0, 3, 1, 4, 2]})


@over("axis", [0, 1, 3, -2])
def test_concat(axis: int) -> None:
    parts = np.split(X, [1] if axis == 0 else [2, 3], axis)
    agree("Concat", list(parts), {"axis": axis}, weights=True)
    agree("Concat", [X.astype(np.int64)], {"axis": axis})


def test_concat_along_channels_of_one_picture_copies_bytes() -> None:
    program = agree("Concat", [X[:1], X[1:]], {"axis": 1}, weights=True)
    assert [call.function for call in program.calls] == ["copy_bytes"] * 2


def test_split() -> None:
    agree("Split", [X, ints(1, 2, 3)], {"axis": 1}, outputs=3)
    agree("Split", [X], {"axis": 1}, outputs=2)
    agree("Split", [X], {"axis": -1, "split": [3, 4]}, opset=11, outputs=2)
    agree("Split", [X], {"axis": 3, "num_outputs": 2}, opset=18, outputs=2)


@given(st.lists(st.tuples(*[st.integers(-9, 9)] * 2, st.integers(-3, 3)), min_size=4, max_size=4))
@drawn
def test_slice(cuts: list[tuple[int, int, int]]) -> None:
    chosen = [(start, end, step) for start, end, step in cuts if step]
    if not chosen:
        return
    bounds = [ints(*column) for column in zip(*chosen, strict=True)]
    sizes = [len(range(n)[_slice(*cut)]) for n, cut in zip(X.shape, chosen, strict=False)]
    if 0 not in sizes:
        agree("Slice", [X, bounds[0], bounds[1], ints(*range(len(chosen))), bounds[2]])


def _slice(start: int, end: int, step: int) -> slice:
    return slice(start, end, step)


def test_slice_as_attributes() -> None:
    agree("Slice", [X], {"starts": [1, -4], "ends": [3, 100], "axes": [1, 3]}, opset=9)
    agree("Slice", [X, ints(4), ints(-100), ints(-1), ints(-2)])


def test_repeats() -> None:
    agree("Expand", [numbers(3, 1), ints(2, 1, 4)])
    agree("Expand", [numbers(1), ints(2, 3)])
    agree("Tile", [X, ints(1, 2, 1, 3)])


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space(mode: str) -> None:
    agree("DepthToSpace", [numbers(2, 8, 3, 5)], {"blocksize": 2, "mode": mode})


def test_space_to_depth() -> None:
    agree("SpaceToDepth", [numbers(2, 3, 6, 9)], {"blocksize": 3})


@over("axis", [0, 1, -1])
def test_gather(axis: int) -> None:
    for places in ([1], [0, 1], [1, 0], [0, 0, 1], [-1, 0, 1, 1]):
        agree("Gather", [X, ints(*places)], {"axis": axis})
    agree("Gather", [X, np.array(-1)], {"axis": axis})
    agree("Gather", [X, ints(0, 1, 1, 0).reshape(2, 2)], {"axis": axis})


@over("dtype", DTYPES)
def test_gather_of_other_elements(dtype: type) -> None:
    x: Array = X.astype(dtype)
    for places, axis in (([1, 0, 0], 1), ([3, 0, 4], -1), ([0, 1, 1], 2)):
        agree("Gather", [x, ints(*places)], {"axis": axis})


@over("mode", ["constant", "edge", "reflect"])
def test_pad_planes(mode: str) -> None:
    for pads in ((0, 0, 1, 2, 0, 0, 3, 0), (0, 0, 0, 4, 0, 0, 2, 4)):
        program = agree("Pad", [X, ints(*pads)], {"mode": mode})
        assert [call.function for call in program.calls] == ["pick"]


def test_pad() -> None:
    value = np.array(2.5, np.float32)
    agree("Pad", [X, ints(0, 1, 2, 0, 1, 0, 0, 3)])
    agree("Pad", [X, ints(0, 0, -1, 2, 0, 0, -1, -3), value])
    agree("Pad", [X, ints(0, -1, -1, 2, 1, 0, -1, -3), value])
    agree("Pad", [X, ints(1, 2), None, ints(3)], opset=18)
    agree("Pad", [X], {"pads": [0, 0, 1, 1, 0, 0, 2, 2], "value": 1.5}, opset=9)
    agree("Pad", [numbers(5), ints(3, 2)], {"mode": "wrap"}, opset=19)


@over("operator", ["Identity", "Flatten", "Reshape", "Squeeze", "Unsqueeze"])
def test_other_names_of_an_input_are_copies_where_they_are_outputs(operator: str) -> None:
    inputs: dict[str, list[Array | None]] = {
        "Reshape": [X[:1], ints(0, -1, 1)],
        "Squeeze": [X[:1], ints(0)],
        "Unsqueeze": [X[:1], ints(1)],
    }
    program = agree(operator, inputs.get(operator, [X]))
    assert [call.function for call in program.calls] == ["copy_bytes"]


def _run(call: KernelLaunch, source: Array, target: Array) -> None:
    arrays = {"input": placed(source), "output": placed(target)}
    some_kernels().launch(
        call,
        lambda pointer: int(arrays[pointer.space].ctypes.data) + pointer.offset,
    )
    target[...] = arrays["output"]
