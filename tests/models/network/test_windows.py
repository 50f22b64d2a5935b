"""Windows by what they are: which elements of an input reach an element of an output."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from models.network.windows import Window, WindowError, windows_of
from models.runtime.sessions import open_session, session_options

windows = st.builds(
    Window,
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 3),
    before=st.integers(-2, 3),
    behind=st.integers(-2, 3),
)


@given(windows, st.integers(1, 20), st.data())
def test_needed_is_what_is_read(window: Window, length: int, data: st.DataObject) -> None:
    made = window.made(length)
    assume(made > 0)
    end = data.draw(st.integers(1, made))
    first = data.draw(st.integers(0, end - 1))
    read = {
        output * window.stride - window.before + tap * window.dilation
        for output in range(first, end)
        for tap in range(window.kernel)
    }
    assert window.needed(first, end) == (min(read), max(read) + 1)
    low, high = window.within(first, end, length)
    assert (low, high) == tuple(min(max(place, 0), length) for place in (min(read), max(read) + 1))
    assert np.array_equal(
        window.needed(np.array([first]), np.array([end])), [[min(read)], [max(read) + 1]]
    )
    fitted = window.fitted(length, made)
    assert (fitted.made(length), fitted.needed(0, made)[1]) == (made, length + fitted.behind)
    assert window.needed(0, made)[1] <= length + window.behind < window.needed(0, made + 1)[1]


@given(st.integers(1, 4), st.integers(1, 9), st.data())
def test_rows_that_are_repeated(factor: int, length: int, data: st.DataObject) -> None:
    window = Window(factor=factor)
    end = data.draw(st.integers(1, window.made(length)))
    first = data.draw(st.integers(0, end - 1))
    read = {output // factor for output in range(first, end)}
    assert window.needed(first, end) == (min(read), max(read) + 1)
    wide = Window(3, 2, before=1, factor=factor)
    assert wide.needed(first, end) == Window(3, 2, before=1).needed(min(read), max(read) + 1)


@given(
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")),
    st.booleans(),
)
def test_sizes_are_those_of_onnx_runtime(
    length: int, kernel: int, stride: int, auto_pad: str, rounds_up: bool
) -> None:
    assume(stride <= kernel <= length)
    attributes: dict[str, Any] = {
        "kernel_shape": [kernel],
        "strides": [stride],
        "ceil_mode": int(rounds_up),
    }
    attributes |= {"pads": [kernel - 1, 0]} if auto_pad == "NOTSET" else {"auto_pad": auto_pad}
    found = windows_of(attributes, [kernel], [length])
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, length])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("MaxPool", ["x"], ["y"], **attributes)
    model = helper.make_model(
        helper.make_graph([node], "pool", [port], [made]),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    session = open_session(model.SerializeToString(), session_options(optimise=False))
    assert (
        session.run(None, {"x": np.zeros((1, 1, length), np.float32)})[0].shape[2:] == found.result
    )
    (axis,) = found.axes
    assert axis.needed(0, found.result[0])[1] <= length + axis.behind + found.beyond[0]


def test_what_does_not_fit() -> None:
    with pytest.raises(WindowError, match="does not fit"):
        windows_of({}, [9, 1], [4, 4])
    with pytest.raises(WindowError, match="a kernel of"):
        windows_of({}, [3], [4, 4])
    with pytest.raises(WindowError, match="a kernel of"):
        windows_of({"strides": [1]}, [3, 3], [4, 4])
