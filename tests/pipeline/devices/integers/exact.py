"""Quantised graphs by integers of 64 bits: what every kernel is to give, on whatever processor.

Only scaling is done in floats, as ONNX defines it of QLinearConv and its kind: a sum of integers times
the product of two scales over a third, in float32, rounded half to even.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Numbers = NDArray[Any]
_Attributes = Mapping[str, Any]


def computed(model: onnx.ModelProto, given: Mapping[str, Numbers]) -> Numbers:
    """Return the one output of ``model``, whose operators are among those below, channels last."""
    held = dict(given)
    held |= {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        held[node.output[0]] = _OPERATORS[node.op_type](
            [held[name] for name in node.input], attributes
        )
    return held[model.graph.output[0].name]


def _as_bytes(numbers: Numbers, zero: Numbers) -> Numbers:
    """Return ``numbers``, floats that a scale was taken of, as bytes around ``zero``."""
    limits = np.iinfo(zero.dtype)
    whole = np.rint(numbers).astype(np.int64) + int(zero)
    return np.clip(whole, limits.min, limits.max).astype(zero.dtype)


def _scaled(
    sums: Numbers, given: Numbers, weight: Numbers, made: Numbers, zero: Numbers
) -> Numbers:
    factors = given * weight / made
    assert factors.dtype == np.float32
    return _as_bytes(sums.astype(np.float32) * factors, zero)


def _middle(values: Numbers, zero: Numbers) -> Numbers:
    return values.astype(np.int64) - zero.astype(np.int64)


def _quantised(inputs: Sequence[Numbers], _: _Attributes) -> Numbers:
    x, scale, zero = inputs
    return _as_bytes(x / scale, zero)


def _slice(inputs: Sequence[Numbers], _: _Attributes) -> Numbers:
    x, start, end, axis = inputs
    cut = [slice(None)] * x.ndim
    cut[int(axis[0])] = slice(int(start[0]), int(end[0]))
    return x[tuple(cut)]


def _pads(attributes: _Attributes, size: Sequence[int], reach: Sequence[int]) -> list[int]:
    """Return what is added above, to the left, below and to the right, for windows of ``reach``."""
    if attributes.get("auto_pad", b"NOTSET") == b"NOTSET":
        return list(attributes["pads"])
    rests = [
        max((-(-n // stride) - 1) * stride + over - n, 0)
        for n, stride, over in zip(size, attributes["strides"], reach, strict=True)
    ]
    return [rest // 2 for rest in rests] + [rest - rest // 2 for rest in rests]


def _windows(x: Numbers, attributes: _Attributes, beyond: int) -> Numbers:
    """Return [1, rows, columns, channels, kernel rows, kernel columns]; ``beyond`` lies around ``x``."""
    steps = attributes.get("dilations", (1, 1))
    reach = [(n - 1) * step + 1 for n, step in zip(attributes["kernel_shape"], steps, strict=True)]
    above, left, below, right = _pads(attributes, x.shape[1:3], reach)
    wide = np.pad(x, ((0, 0), (above, below), (left, right), (0, 0)), constant_values=beyond)
    (down, across), strides = steps, attributes["strides"]
    found = sliding_window_view(wide, reach, (1, 2))
    return found[:, :: strides[0], :: strides[1], :, ::down, ::across]


def _convolved(inputs: Sequence[Numbers], attributes: _Attributes) -> Numbers:
    x, scale, zero, weights, weight_scale, weight_zero, made, made_zero, bias = inputs
    taps = _middle(weights, weight_zero.reshape(-1, *[1] * 3))
    windows = _windows(_middle(x, zero), attributes, 0)
    if attributes["group"] == 1:
        sums = np.einsum("nyxcij,fcij->nyxf", windows, taps, optimize=True)
    else:
        assert attributes["group"] == x.shape[3] == len(taps)
        sums = np.einsum("nyxcij,cij->nyxc", windows, taps[:, 0])
    return _scaled(sums + bias, scale, weight_scale, made, made_zero)


def _product(inputs: Sequence[Numbers], attributes: _Attributes) -> Numbers:
    x, scale, zero, weights, weight_scale, weight_zero, bias, made, made_zero = inputs
    turned = attributes["transB"]
    taps = _middle(weights.T if turned else weights, weight_zero)
    return _scaled(_middle(x, zero) @ taps + bias, scale, weight_scale, made, made_zero)


def _most(inputs: Sequence[Numbers], attributes: _Attributes) -> Numbers:
    (x,) = inputs
    most: Numbers = _windows(x, attributes, np.iinfo(x.dtype).min).max((-2, -1))
    return most


def _average(inputs: Sequence[Numbers], _: _Attributes) -> Numbers:
    x, scale, zero, made, made_zero = inputs
    sums = _middle(x, zero).sum((1, 2), keepdims=True)
    pixels = np.float32(x.shape[1] * x.shape[2])
    return _as_bytes(sums.astype(np.float32) * (scale / (made * pixels)), made_zero)


def _added(inputs: Sequence[Numbers], _: _Attributes) -> Numbers:
    """By two steps that round once each, of products and sums, as ONNX Runtime has it."""
    x, x_scale, x_zero, z, z_scale, z_zero, made, made_zero = inputs
    first, second = (np.float64(scale / made) for scale in (x_scale, z_scale))
    part = np.float32(second) * z_zero.astype(np.float32)
    start = made_zero.astype(np.float32) - np.float32(first * x_zero + part)
    partial = (z * second + start).astype(np.float32)
    limits = np.iinfo(made_zero.dtype)
    sums = np.rint((x * first + partial).astype(np.float32))
    return np.clip(sums, limits.min, limits.max).astype(made_zero.dtype)


def _joined(inputs: Sequence[Numbers], _: _Attributes) -> Numbers:
    """In another scale each byte is looked up: the number that it stands for, quantised."""
    made, made_zero, *parts = inputs
    found = []
    for x, scale, zero in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        is_same = (scale, zero) == (made, made_zero)
        numbers = scale * _middle(x, zero).astype(np.float32)
        found.append(x if is_same else _as_bytes(numbers / made, made_zero))
    return np.concatenate(found, axis=3)


_OPERATORS: Mapping[str, Callable[[Sequence[Numbers], _Attributes], Numbers]] = {
    "Cast": lambda inputs, _: inputs[0].astype(np.int32),
    "Gather": lambda inputs, _: inputs[0][inputs[1]],
    "NhwcMaxPool": _most,
    "QGemm": _product,
    "QLinearAdd": _added,
    "QLinearConcat": _joined,
    "QLinearConv": _convolved,
    "QLinearGlobalAveragePool": _average,
    "QuantizeLinear": _quantised,
    "Slice": _slice,
    "Transpose": lambda inputs, attributes: inputs[0].transpose(attributes["perm"]),
}
