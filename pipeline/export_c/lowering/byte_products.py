"""Convolutions and products of bytes: the same bits as ONNX Runtime's."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.node import NodeReader, Shape, UnsuitedError
from models.network.windows import SAME, Windows
from pipeline.export_c.lowering.builder import Builder
from pipeline.export_c.lowering.convolution import geometry
from pipeline.export_c.lowering.scales import scaled, signed
from pipeline.export_c.lowering.steps import Band, Pointer, Record, Rows, Weight
from pipeline.export_c.network.quantised import CONVOLUTION, PRODUCT


def convolution(to: Builder, read: NodeReader) -> None:
    """QLinearConv, with channels last or in front."""
    last, weight = bool(read.attribute("channels_last", 0)), read.constant(3)
    shape = read.value(0).shape
    if len(shape) != 4:
        raise UnsuitedError(f"an input of {len(shape)} dimensions; 4 can be exported")
    plain = (shape[0], shape[3], *shape[1:3]) if last else shape
    groups, filters = int(read.attribute("group", 1)), len(weight)
    if plain[1] != weight.shape[1] * groups or filters % groups:
        raise UnsuitedError(f"a weight {list(weight.shape)} in {groups} groups on {list(shape)}")
    windows = read.windows(weight.shape[2:], plain[2:])
    fields = geometry(plain, (shape[0], filters, *windows.result), windows, groups)
    size = windows.result
    result = (shape[0], *size, filters) if last else (shape[0], filters, *size)
    rows = np.ascontiguousarray(np.moveaxis(weight, 1, -1))
    _Product(to, read, 1).add(rows, fields, result, last, 8, 6)


def product(to: Builder, read: NodeReader) -> None:
    """QGemm: a convolution of one pixel, in a row of them."""
    shape, matrix = read.value(0).shape, _matrix(read, 3)
    if len(shape) != 2 or shape[1] != matrix.shape[1]:
        raise UnsuitedError(f"a matrix {list(matrix.shape)} on {list(shape)}")
    size = (1, shape[0])
    windows = Windows((SAME, SAME), size, size, (0, 0))
    fields = geometry((1, shape[1], *size), (1, len(matrix), *size), windows, 1)
    _Product(to, read, 1).add(matrix, fields, (shape[0], len(matrix)), True, 6, 7)


def _matrix(read: NodeReader, position: int) -> NDArray[Any]:
    """Return the constant matrix by outputs."""
    if read.attribute("alpha", 1.0) != 1.0 or read.attribute("transA", 0):
        raise UnsuitedError("alpha or transA")
    matrix = read.constant(position)
    return np.ascontiguousarray(matrix if read.attribute("transB", 0) else matrix.T)


class _Product:
    """A convolution of bytes; inputs from ``position`` on are the scales, as in QLinearConv."""

    def __init__(self, to: Builder, read: NodeReader, position: int) -> None:
        self._to = to
        self._read = read
        self._given = scaled(read, position)
        self._weight = scaled(read, position + 3)

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
        if not self._read.has(position):
            raise UnsuitedError("a result that is not quantised")
        made = scaled(self._read, position)
        y = made.made(self._read, result)
        # In this order, as ONNX Runtime does: each operation rounds.
        scale = np.float32(self._given.one) * self._weight.scale.reshape(-1)
        scale = np.broadcast_to(scale / np.float32(made.one), len(rows)).astype(np.float32)
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
            "y_zero": made.zero,
            "y_flip": made.flip,
        }
        self._to.step(
            y,
            "convolve_bytes",
            Pointer(self._read.name(0)),
            Weight(np.ascontiguousarray(signed(rows)), rows=True),
            self._bias(bias, len(rows)),
            Weight(np.ascontiguousarray(scale)),
            self._to.make(y),
            Record("bytes", fields),
            Rows(len(rows)),
            Band(fields["result_y"]),
        )

    def _bias(self, position: int, filters: int) -> Weight | None:
        """Return a number for each filter, of whatever broadcasts to one row of the result."""
        if not self._read.has(position):
            return None
        bias = self._read.constant(position)
        try:
            return Weight(np.broadcast_to(bias, (1, filters)).reshape(-1))
        except ValueError:
            raise UnsuitedError(f"a bias {list(bias.shape)} of {filters} filters") from None


OPERATORS: dict[str, Callable[[Builder, NodeReader], None]] = {
    "QLinearConv": convolution,
    PRODUCT: product,
    CONVOLUTION: convolution,
}
