"""Layers on 8-bit integers: the same bits as ONNX Runtime's.

Numbers are unsigned bytes everywhere in C: of a signed one the highest bit is flipped, and so is that of
its zero point. Sums are 32-bit integers; results are rounded to the nearest, half to even, and saturate.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.packs.records.fields import Array
from models.runtime.sessions import open_session, session_options
from pipeline.devices.operators.window import Window
from pipeline.export_c.lowering.convolution import geometry
from pipeline.export_c.lowering.movement import concat
from pipeline.export_c.lowering.node import Operation, Shape, items
from pipeline.export_c.lowering.steps import Band, Record, Rows, Value, Weight
from pipeline.export_c.network.quantised import WINDOWS

_FLIPS = {"uint8": 0, "int8": 128}
_LAST = "com.microsoft.NhwcMaxPool"
_NUMBERS = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}


@dataclass(frozen=True)
class _Scaled:
    """How bytes stand for numbers: ``scale`` times (byte - ``zero``); ``flip``: the bit of signed ones."""

    dtype: str
    scale: NDArray[np.float32]
    zero: int

    @property
    def flip(self) -> int:
        return _FLIPS[self.dtype]

    @property
    def one(self) -> float:
        """The scale, where there is one for all."""
        return float(self.scale.reshape(-1)[0])


def _scaled(operation: Operation, position: int) -> _Scaled:
    """Return what the inputs ``position`` (scale) and the next (zero point) say."""
    scale = operation.constant(position).astype(np.float32)
    zero = operation.optional(position + 1)
    dtype = "uint8" if zero is None else zero.dtype.name
    if dtype not in _FLIPS:
        operation.refuse(f"{dtype}; int8 and uint8 can be exported")
    zeros = np.zeros(1, np.uint8) if zero is None else zero.reshape(-1)
    if (zeros != zeros[0]).any():
        operation.refuse("zero points that differ from channel to channel")
    return _Scaled(dtype, scale, int(zeros[0]) + _FLIPS[dtype])


def signed(weights: NDArray[Any]) -> NDArray[np.int8]:
    """Return bytes as signed ones: unsigned ones less 128, as their zero point must be."""
    if weights.dtype == np.int8:
        return weights
    return (weights.astype(np.int16) - 128).astype(np.int8)


def quantize(operation: Operation) -> None:
    """QuantizeLinear with one scale."""
    operation.floats(0)
    made, to = _elements(operation, 1)
    if to.scale.size > 1:
        operation.refuse("a scale for each channel")
    operation.step(
        "quantize",
        operation.operand(0),
        Value(made),
        items(operation.shape(0)),
        to.one,
        to.zero,
        to.flip,
    )


def dequantize(operation: Operation) -> None:
    """DequantizeLinear with one scale."""
    given = _scaled(operation, 1)
    if given.scale.size > 1 or operation.array(0).dtype not in _FLIPS:
        operation.refuse("a scale for each channel, or no bytes")
    made = operation.make(operation.shape(0))
    operation.step(
        "dequantize",
        *(operation.operand(0), Value(made), items(operation.shape(0))),
        *(given.one, given.zero, given.flip),
    )


def _elements(operation: Operation, position: int) -> tuple[str, _Scaled]:
    to = _scaled(operation, position)
    return operation.make(operation.shape(0), to.dtype), to


def convolution(operation: Operation) -> None:
    """QLinearConv, with channels last or in front."""
    last = bool(operation.attribute("channels_last", 0))
    shape = operation.shape(0)
    if len(shape) != 4:
        operation.refuse(f"an input of {len(shape)} dimensions; 4 can be exported")
    weight = operation.constant(3)
    plain = (shape[0], shape[3], *shape[1:3]) if last else shape
    groups = int(operation.attribute("group", 1))
    if plain[1] != weight.shape[1] * groups or len(weight) % groups:
        operation.refuse(f"a weight {list(weight.shape)} in {groups} groups on {list(shape)}")
    frame = operation.window(weight.shape[2:], plain[2:])
    fields = geometry(plain, frame, len(weight), groups)
    result = (
        (shape[0], *frame.result, len(weight)) if last else (shape[0], len(weight), *frame.result)
    )
    rows = np.ascontiguousarray(np.moveaxis(weight, 1, -1))
    _Product(operation, 1).add(rows, fields, result, last, operation.optional(8), 6)


def product(operation: Operation) -> None:
    """QGemm: a convolution of one pixel, in a row of them."""
    shape, matrix = operation.shape(0), _matrix(operation, 3)
    if len(shape) != 2 or shape[1] != matrix.shape[1]:
        operation.refuse(f"a matrix {list(matrix.shape)} on {list(shape)}")
    frame = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0), (0, 0), (1, shape[0]))
    fields = geometry((1, shape[1], 1, shape[0]), frame, len(matrix), 1)
    result = (shape[0], len(matrix))
    _Product(operation, 1).add(matrix, fields, result, True, operation.optional(6), 7)


def windows(operation: Operation) -> None:
    """A product on windows: the convolution that says the same."""
    shape, result = operation.shape(0), tuple(operation.attribute("shape"))
    matrix = _matrix(operation, 4)
    pixels = operation.constant(1).reshape(-1)
    if len(shape) != 4 or len(result) != 4 or shape[0] != 1:
        operation.refuse(f"windows of {list(shape)}")
    taps = len(pixels) // items(result[1:3])
    frame = _frame(pixels, shape[1:3], result[1:3], taps)
    if frame is None or matrix.shape[1] != taps * shape[3]:
        operation.refuse("its windows are those of no convolution")
    plain = (shape[0], shape[3], *shape[1:3])
    fields = geometry(plain, frame, len(matrix), 1)
    _Product(operation, 2).add(matrix, fields, result, True, operation.optional(7), 8)


def _matrix(operation: Operation, position: int) -> NDArray[Any]:
    """Return the constant matrix by outputs."""
    if operation.attribute("alpha", 1.0) != 1.0 or operation.attribute("transA", 0):
        operation.refuse("alpha or transA")
    matrix = operation.constant(position)
    return np.ascontiguousarray(matrix if operation.attribute("transB", 0) else matrix.T)


def _frame(pixels: NDArray[Any], size: Shape, result: Shape, taps: int) -> Window | None:
    """Return the window whose rows and columns ``pixels`` are, the pixel behind the last one outside."""
    for rows in (n for n in range(1, taps + 1) if taps % n == 0):
        kernel = rows, taps // rows
        places = pixels.reshape(*result, *kernel)
        held = places < items(size)
        axes = [_axis(places // size[1], held, 0), _axis(places % size[1], held, 1)]
        strides, dilations, pads = zip(*axes, strict=True)
        found = Window(kernel, strides, dilations, pads, (0, 0), (0, 0), (result[0], result[1]))
        if np.array_equal(_places(found, size), places):
            return found
    return None


def _axis(numbers: NDArray[Any], held: NDArray[np.bool_], axis: int) -> tuple[int, int, int]:
    """Return stride, dilation and pad of an axis, of where its pixels lie inside."""
    at = np.argwhere(held)
    known = np.stack([at[:, axis], at[:, 2 + axis], np.ones(len(at))], axis=1)
    found, *_ = np.linalg.lstsq(known, numbers[held].astype(np.float64), rcond=None)
    stride, step, start = (int(n) for n in np.rint(found))
    return max(stride, 1), max(step, 1), -start


def _places(frame: Window, size: Shape) -> NDArray[np.int64]:
    axes = [
        np.arange(count)[:, None] * stride + np.arange(kernel) * step - pad
        for count, stride, kernel, step, pad in zip(
            frame.result, frame.strides, frame.kernel, frame.dilations, frame.begins, strict=True
        )
    ]
    rows, columns = axes[0][:, None, :, None], axes[1][None, :, None, :]
    held = (rows >= 0) & (rows < size[0]) & (columns >= 0) & (columns < size[1])
    return np.where(held, rows * size[1] + columns, items(size))


class _Product:
    """A convolution of bytes; inputs from ``position`` on are the scales, as in QLinearConv."""

    def __init__(self, operation: Operation, position: int) -> None:
        self._operation = operation
        self._given = _scaled(operation, position)
        self._weight = _scaled(operation, position + 3)

    def add(
        self,
        rows: NDArray[Any],
        fields: dict[str, int],
        result: Shape,
        last: bool,
        bias: NDArray[Any] | None,
        position: int,
    ) -> None:
        """Add the step: ``rows`` are weights by filters, input ``position`` is the scale of the result."""
        if not self._operation.has(position):
            self._operation.refuse("a result that is not quantised")
        to = _scaled(self._operation, position)
        made = self._operation.make(result, to.dtype)
        # In this order, as ONNX Runtime does: each operation rounds.
        scale = np.float32(self._given.one) * self._weight.scale.reshape(-1)
        scale = np.broadcast_to(scale / np.float32(to.one), len(rows)).astype(np.float32)
        planes = fields["size_y"] * fields["size_x"], fields["result_y"] * fields["result_x"]
        fields |= {
            "part": 0,
            "x_pixel": fields["channels"] if last else 1,
            "x_channel": 1 if last else planes[0],
            "y_pixel": fields["filters"] if last else 1,
            "y_channel": 1 if last else planes[1],
            "x_zero": self._given.zero,
            "x_flip": self._given.flip,
            "w_zero": self._weight.zero - 128,
            "y_zero": to.zero,
            "y_flip": to.flip,
        }
        self._operation.step(
            "convolve_bytes",
            Value(self._operation.name(0)),
            Weight(np.ascontiguousarray(signed(rows)), rows=True),
            None if bias is None else Weight(np.ascontiguousarray(bias.reshape(-1))),
            Weight(np.ascontiguousarray(scale)),
            Value(made),
            Record("bytes", fields),
            Rows(len(rows)),
            Band(fields["result_y"]),
        )


def add(operation: Operation) -> None:
    """QLinearAdd of two values of one shape."""
    one, other, to = (_scaled(operation, position) for position in (1, 4, 6))
    shape = operation.shape(0)
    if operation.shape(3) != shape:
        operation.refuse(f"shapes {list(shape)} and {list(operation.shape(3))}")
    single = np.float32
    factors = single(one.one) / single(to.one), single(other.one) / single(to.one)
    # Zero points as they are written: flipped ones would round otherwise.
    zeros = [item.zero - item.flip for item in (one, other, to)]
    # One of the two products is not rounded, in ONNX Runtime as it is compiled for processors with fma.
    part = float(factors[1] * single(zeros[1]))
    start = single(zeros[2]) - single(float(factors[0]) * zeros[0] + part)
    made = operation.make(shape, to.dtype)
    fields: dict[str, int | float | tuple[int, ...]] = {
        "n": items(shape),
        "first": float(factors[0]),
        "second": float(factors[1]),
        "start": float(start),
        "x_flip": one.flip,
        "w_flip": other.flip,
        "y_flip": to.flip,
    }
    operation.step(
        "add_bytes",
        *(operation.operand(0), operation.operand(3), Value(made), Record("sums", fields)),
        in_place=[operation.name(n) for n in (0, 3) if not operation.is_constant(n)],
        pointwise=True,
    )


def max_pool(operation: Operation) -> None:
    """MaxPool of bytes, with channels last (NhwcMaxPool) or in front."""
    shape, dtype = operation.shape(0), operation.array(0).dtype
    if len(shape) != 4 or dtype not in _FLIPS:
        operation.refuse(f"{dtype} {list(shape)}")
    last = operation.node.operator == _LAST
    size = shape[1:3] if last else shape[2:]
    frame = operation.window(operation.attribute("kernel_shape"), size)
    made = operation.make(
        (shape[0], *frame.result, shape[3]) if last else (*shape[:2], *frame.result), dtype
    )
    # Channels in front are images of one channel each.
    batch, channels = (shape[0], shape[3]) if last else (items(shape[:2]), 1)
    record = Record("window", geometry((batch, channels, *size), frame, channels, channels))
    operation.step("largest_bytes", Value(operation.name(0)), Value(made), record, _FLIPS[dtype])


def global_average_pool(operation: Operation) -> None:
    """QLinearGlobalAveragePool, with channels last or in front."""
    last, shape = bool(operation.attribute("channels_last", 0)), operation.shape(0)
    given, to = _scaled(operation, 1), _scaled(operation, 3)
    channels, pixels = (shape[-1], shape[1:-1]) if last else (shape[1], shape[2:])
    ones = [1] * len(pixels)
    made = operation.make(
        (shape[0], *ones, channels) if last else (shape[0], channels, *ones), to.dtype
    )
    count = items(pixels)
    scale = np.float32(given.one) / (np.float32(to.one) * np.float32(count))
    fields: dict[str, int | float | tuple[int, ...]] = {
        "batch": shape[0],
        "channels": channels,
        "plane": count,
        "scale": float(scale),
        "pixel": channels if last else 1,
        "channel": 1 if last else count,
        "x_zero": given.zero,
        "x_flip": given.flip,
        "y_zero": to.zero,
        "y_flip": to.flip,
    }
    operation.step(
        "average_bytes", Value(operation.name(0)), Value(made), Record("averages", fields)
    )


def joined(operation: Operation) -> None:
    """QLinearConcat: of parts with other scales than the whole each byte is looked up first."""
    parts = range(2, len(operation.node.inputs), 3)
    names = [
        _looked_up(operation, position, [0, 1, position, position + 1, position + 2])
        for position in parts
    ]
    concat(operation.with_inputs(names))


def element_table(operation: Operation) -> None:
    """QLinearSigmoid, QLinearLeakyRelu: a table of 256 bytes, which ONNX Runtime fills."""
    _looked_up(operation, 0, range(len(operation.node.inputs)), operation.node.output)


def _looked_up(
    operation: Operation, position: int, inputs: "list[int] | range", output: str | None = None
) -> str:
    """Add a step that looks up each byte of input ``position``, unless all stay; return what it makes."""
    name, array = operation.name(position), operation.array(position)
    if array.dtype not in _FLIPS:
        operation.refuse(f"{array.dtype}; int8 and uint8 can be exported")
    table = _table(operation, position, inputs, array)
    same = np.array_equal(table, np.arange(256, dtype=np.uint8).view(array.dtype))
    if same and output is None:
        return name
    made = output or f"{operation.node.output}/{position}"
    operation.make_other(made, Array(dtype=table.dtype.name, shape=array.shape))
    operation.step(
        "look_up",
        *(Value(name), Value(made), items(array.shape), Weight(table.view(np.uint8))),
        output=made,
        in_place=(name,),
        pointwise=True,
    )
    return made


def _table(
    operation: Operation, position: int, inputs: "list[int] | range", array: Array
) -> NDArray[Any]:
    """Return what the node makes of each byte, in the order of the bytes as unsigned numbers."""
    node, names = operation.node, [f"i{index}" for index in inputs]
    kind, rest = _NUMBERS[array.dtype], [index for index in inputs if index != position]
    constants = [
        numpy_helper.from_array(operation.constant(i), f"i{i}") for i in rest if operation.has(i)
    ]
    given = {**node.attributes, **({"axis": 0} if "axis" in node.attributes else {})}
    domain, _, name = node.operator.rpartition(".")
    inner = helper.make_node(name, names, ["y"], domain=domain, **given)
    graph = helper.make_graph(
        [inner],
        "table",
        [helper.make_tensor_value_info(f"i{position}", kind, [256])],
        [helper.make_empty_tensor_value_info("y")],
        constants,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    session = open_session(model.SerializeToString(), session_options(optimise=False))
    numbers = np.arange(256, dtype=np.uint8).view(array.dtype)
    return np.asarray(session.run(None, {f"i{position}": numbers})[0])


OPERATORS: dict[str, Callable[[Operation], None]] = {
    "DequantizeLinear": dequantize,
    "QLinearConv": convolution,
    "QuantizeLinear": quantize,
    "com.microsoft.DequantizeLinear": dequantize,
    _LAST: max_pool,
    "com.microsoft.QGemm": product,
    "com.microsoft.QLinearAdd": add,
    "com.microsoft.QLinearConcat": joined,
    "com.microsoft.QLinearConv": convolution,
    "com.microsoft.QLinearGlobalAveragePool": global_average_pool,
    "com.microsoft.QLinearLeakyRelu": element_table,
    "com.microsoft.QLinearSigmoid": element_table,
    "com.microsoft.QuantizeLinear": quantize,
    WINDOWS: windows,
}
