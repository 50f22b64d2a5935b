"""Convolutions and products of bytes: the same bits as ONNX Runtime's."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.devices.operators.window import Window
from pipeline.export_c.lowering.convolution import geometry
from pipeline.export_c.lowering.node import Operation, Shape, items
from pipeline.export_c.lowering.scales import scaled, signed
from pipeline.export_c.lowering.steps import Band, Record, Rows, Value, Weight
from pipeline.export_c.network.quantised import WINDOWS


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
    _Product(operation, 1).add(rows, fields, result, last, 8, 6)


def product(operation: Operation) -> None:
    """QGemm: a convolution of one pixel, in a row of them."""
    shape, matrix = operation.shape(0), _matrix(operation, 3)
    if len(shape) != 2 or shape[1] != matrix.shape[1]:
        operation.refuse(f"a matrix {list(matrix.shape)} on {list(shape)}")
    frame = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0), (0, 0), (1, shape[0]))
    fields = geometry((1, shape[1], 1, shape[0]), frame, len(matrix), 1)
    result = (shape[0], len(matrix))
    _Product(operation, 1).add(matrix, fields, result, True, 6, 7)


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
    _Product(operation, 2).add(matrix, fields, result, True, 7, 8)


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
        self._given = scaled(operation, position)
        self._weight = scaled(operation, position + 3)

    def add(
        self,
        rows: NDArray[Any],
        fields: dict[str, int],
        result: Shape,
        last: bool,
        bias: int,
        position: int,
    ) -> None:
        """Add the step: ``rows`` are weights by filters.

        Input ``bias`` is the bias, if there is one; ``position``: the scale of the result.
        """
        if not self._operation.has(position):
            self._operation.refuse("a result that is not quantised")
        to = scaled(self._operation, position)
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
            self._bias(bias, len(rows)),
            Weight(np.ascontiguousarray(scale)),
            Value(made),
            Record("bytes", fields),
            Rows(len(rows)),
            Band(fields["result_y"]),
        )

    def _bias(self, position: int, filters: int) -> Weight | None:
        """Return a number for each filter, of whatever broadcasts to one row of the result."""
        bias = self._operation.optional(position)
        if bias is None:
            return None
        try:
            return Weight(np.broadcast_to(bias, (1, filters)).reshape(-1))
        except ValueError:
            self._operation.refuse(f"a bias {list(bias.shape)} of {filters} filters")


OPERATORS: dict[str, Callable[[Operation], None]] = {
    "QLinearConv": convolution,
    "com.microsoft.QGemm": product,
    "com.microsoft.QLinearConv": convolution,
    WINDOWS: windows,
}
