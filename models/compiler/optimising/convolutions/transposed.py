"""Transposed convolutions, as convolutions that make all pixels between two of the input at once.

ONNX Runtime computes a transposed convolution unrolled: the products of each pixel with a whole kernel lie
in memory of their own, and are added up where they belong (56 MiB for 16 channels at 180 x 320 pixels and a
kernel of 16 x 16). With a stride of s each result is a sum over every s-th tap alone. So a convolution of
s x s times as many channels makes them, and DepthToSpace puts them side by side. That one has a blocked
kernel, and both run on rows.

The same sums in another order, and products with zeros.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from models.graphs.rewriting import Rewriter
from models.network.fields import Array
from models.network.operators.reading import TransposedConvolution
from models.network.windows import Window

#: A blocked convolution takes any number of channels below a block, else multiples of this.
_CHANNELS = 4
# From here on Slice takes its ends as inputs.
_OPSET = 10


@dataclass(frozen=True)
class _Axis:
    """A convolution that does what a transposed one does along rows, or columns.

    ``taps``: for each of its kernel, and each of ``stride`` places, the tap of the transposed one; one more
    than there are is zero. ``before``, ``after``: its padding. ``made``: results of the transposed one.
    """

    taps: list[list[int]]
    before: int
    after: int
    stride: int
    made: int

    @property
    def crops(self) -> bool:
        return self.made % self.stride > 0


class TransposedAsConvolutions(Rewriter):
    """Makes convolutions of those that a kernel computes whose channels lie in blocks of ``block``."""

    def __init__(self, model: onnx.ModelProto, values: Mapping[str, Array], block: int) -> None:
        super().__init__(model, values)
        self._block = block

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        axes = self._axes(node)
        return None if axes is None else self._convolved(node, *axes)

    def _axes(self, node: onnx.NodeProto) -> tuple[_Axis, _Axis] | None:
        """Return how a convolution does what ``node`` does; None: it is no transposed one, or none does."""
        found = self.operator(node) if node.op_type == "ConvTranspose" else None
        inferred = self.shape(node.output[0])
        if not isinstance(found, TransposedConvolution) or inferred != found.y.shape:
            return None
        if not all(name in self.tensors for name in node.input[1:] if name):
            return None
        windows, channels = found.windows, found.x.shape[1]
        plain = found.groups == 1 and set(windows.dilations) == {1} and len(windows.axes) == 2
        computed = self._block == 1 or channels < self._block or channels % _CHANNELS == 0
        if not plain or not computed or len(set(windows.strides)) != 1:
            return None
        rows, columns = map(_axis, windows.axes, windows.result, windows.size)
        if rows is None or columns is None:
            return None
        crops = rows.crops or columns.crops
        return None if crops and self.versions.get("", 0) < _OPSET else (rows, columns)

    def _convolved(self, node: onnx.NodeProto, rows: _Axis, columns: _Axis) -> list[onnx.NodeProto]:
        x, weight, *bias = node.input
        title, size = node.output[0], rows.stride
        inputs, features = self.tensors[weight].dims[:2]
        nodes: list[onnx.NodeProto] = []

        def new(kind: str, read: Sequence[str], **given: Any) -> str:
            made = self.fresh(f"{title}/{kind.lower()}")
            nodes.append(helper.make_node(kind, read, [made], **given))
            return made

        def taken(name: str, axis: int, of: _Axis) -> str:
            shape = [inputs, features, *(len(rows.taps), size)[: 2 * (axis > 2)]]
            shape += self.tensors[weight].dims[2 + (axis > 2) :]
            shape[axis] = 1
            zeros = self.constant(f"{title}/zeros", np.zeros(shape, np.float32))
            index = self.constant(f"{title}/taps", np.array(of.taps, np.int64))
            return new("Gather", [new("Concat", [name, zeros], axis=axis), index], axis=axis)

        # [inputs, features, kernel rows, places, kernel columns, places]
        kernel = taken(taken(weight, 2, rows), 4, columns)
        kernel = new("Transpose", [kernel], perm=[3, 5, 1, 0, 2, 4])
        sides = [len(rows.taps), len(columns.taps)]
        shape = np.array([size * size * features, inputs, *sides], np.int64)
        kernel = new("Reshape", [kernel, self.constant(f"{title}/shape", shape)])
        if any(bias):
            every = self.constant(f"{title}/features", np.tile(np.arange(features), size * size))
            bias = [new("Gather", [bias[0], every], axis=0)]
        pads = [rows.before, columns.before, rows.after, columns.after]
        found = new("Conv", [x, kernel, *filter(None, bias)], kernel_shape=sides, pads=pads)
        nodes[-1].name = node.name
        if size > 1:
            found = new("DepthToSpace", [found], blocksize=size)
        for axis, of in ((2, rows), (3, columns)):
            if of.crops:
                ends = ([0], [of.made], [axis])
                given = [self.constant(f"{title}/crop", np.array(end, np.int64)) for end in ends]
                found = new("Slice", [found, *given])
        nodes[-1].output[0] = title
        return nodes


def _axis(window: Window, given: int, made: int) -> _Axis | None:
    """Return how a convolution makes ``made`` results of ``given``; None: none does.

    Result stride * j + r is the sum over d of input j + d times tap r + before - stride * d.
    """
    kernel, stride, before = window.kernel, window.stride, window.before
    first, last = -((kernel - 1 - before) // stride), (stride - 1 + before) // stride
    taps = [
        [
            tap if 0 <= (tap := place + before - stride * offset) < kernel else kernel
            for place in range(stride)
        ]
        for offset in range(first, last + 1)
    ]
    after = -(-made // stride) - given + len(taps) - 1 + first
    return None if first > 0 or after < 0 else _Axis(taps, -first, after, stride, made)
