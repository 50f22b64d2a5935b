"""Fully connected layers and transposed convolutions, said in convolutions that have a blocked kernel.

A row is a token of a transformer, or a pixel of an image whose channels lie last. ONNX Runtime computes
them as Gemm, whose result does not lie together by output channel: such a layer cannot be streamed in
chunks. On an image [1, channels, rows, columns] it is a convolution, which has a blocked kernel whose
weights lie as it reads them, and operators on elements around it (GELU, a sum) stay in that layout.

Nodes are rewritten before ONNX Runtime blocks the network: images are made beside the other forms, and what
no node reads is left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.graphs.graph import Graph
from models.graphs.rewriter import Rewriter
from models.network.catalogue import traits_of
from models.network.names import Op
from models.network.node import Node
from models.network.operators.reading import MatrixProduct, TransposedConvolution
from models.network.windows import Window

# Fully connected layers on many rows, as convolutions of one pixel.

_TO_IMAGE, _FROM_IMAGE = [0, 3, 1, 2], [0, 2, 3, 1]
_RANK = 4
#: Rows and columns of an image.
Sides = tuple[int, int]


class AsConvolutions(Rewriter):
    """Makes convolutions of layers whose channels divide by ``block``, those of a block.

    ``_images``: what a value is called as [1, channels, rows, columns].
    """

    def __init__(self, graph: Graph, block: int) -> None:
        super().__init__(graph)
        self._block = block
        self._weights = {name: array.shape for name, array in graph.constants.items()}
        self._images: dict[str, str] = {}
        self._sides: dict[str, Sides] = {}
        # Values that dense layers make, or sums with one.
        self._summed: set[str] = set()

    def replaced(self, node: Node) -> list[Node] | None:
        """Return what makes the same as ``node``, and what makes an image of it."""
        if node.domain:
            return None
        traits = traits_of(node.operator)
        product = self.operator(node) if traits.access == "product" else None
        if isinstance(product, MatrixProduct) and self._is_dense(node, product):
            return self._convolved(node, product)
        if self._images.keys().isdisjoint(node.inputs):
            return None
        if node.operator == Op.Reshape and self._keeps_channels(node):
            self._name_image(node.output, *self._image_of(node.inputs[0]))
            self._summed |= {node.output} if node.inputs[0] in self._summed else set()
        elif node.operator == Op.Transpose and self._makes_image(node):
            return [self.node(Op.Identity, [self._images[node.inputs[0]]], node.outputs)]
        elif traits.function is not None and self._is_per_channel(node):
            return self._computed(node, is_sum=traits.function == "add")
        return None

    def _is_dense(self, node: Node, product: MatrixProduct) -> bool:
        """Return whether ``node`` multiplies several rows by a matrix that nothing else reads."""
        a, b = node.inputs[:2]
        biases = [self._weights.get(name) for name in node.inputs[2:] if name]
        return (
            a in self.values
            and len(self._weights.get(b, ())) == 2
            and self.uses[b] == 1
            and product.scale == product.addend_scale == 1
            and not product.turned[0]
            and math.prod(self.values[a].shape[:-1]) > 1
            and product.depth % self._block == product.columns % self._block == 0
            and all(bias == (product.columns,) for bias in biases)
            and node.output in self.values
        )

    def _convolved(self, node: Node, product: MatrixProduct) -> list[Node]:
        x, weight, *bias = node.inputs
        before = self._with_image(x, self._own_sides(x))
        source, sides = self._image_of(x)
        by_row = product.turned[1]
        matrix, kernel = self.fresh(f"{weight}/rows"), self.fresh(f"{weight}/kernel")
        image = self.fresh(f"{node.output}/image")
        self._name_image(node.output, image, sides)
        self._summed.add(node.output)
        convolution = self.node(
            Op.Conv, [source, kernel, *bias], [image], node.name, kernel_shape=[1, 1]
        )
        return [
            *before,
            *([] if by_row else [self.node(Op.Transpose, [weight], [matrix], perm=[1, 0])]),
            self.reshape(
                weight if by_row else matrix, kernel, (product.columns, product.depth, 1, 1)
            ),
            convolution,
            *self._from_image(node.output),
        ]

    def _from_image(self, name: str) -> list[Node]:
        """Return nodes that make ``name`` of its image."""
        back = self.fresh(f"{name}/last")
        return [
            self.node(Op.Transpose, [self._images[name]], [back], perm=_FROM_IMAGE),
            self.reshape(back, name, self.values[name].shape),
        ]

    def _own_sides(self, name: str) -> Sides:
        """Return rows and columns of the image that the rows of ``name`` are pixels of, else one row."""
        channels = self.values[name].shape[-1]
        rows = math.prod(self.values[name].shape[:-1])
        while name in self.values and self.values[name].shape[-1:] == (channels,):
            shape = self.values[name].shape
            if len(shape) == _RANK and shape[0] == 1:
                return shape[1], shape[2]
            maker = self.makers.get(name)
            if maker is None or maker.operator != Op.Reshape:
                break
            name = maker.inputs[0]
        return 1, rows

    def _is_shared(self, reshape: Node) -> bool:
        """Return whether others read what ``reshape`` reads: they may share its image."""
        return self._keeps_channels(reshape) and len(self.readers[reshape.inputs[0]]) > 1

    def _keeps_channels(self, node: Node) -> bool:
        before, after = (self.values.get(name) for name in (node.inputs[0], node.output))
        return before is not None and after is not None and before.shape[-1:] == after.shape[-1:]

    def _makes_image(self, node: Node) -> bool:
        result = self.values.get(node.output)
        sides = self._sides[node.inputs[0]]
        turned = node.attributes.get("perm") == _TO_IMAGE
        return turned and result is not None and (result.shape[0], *result.shape[2:]) == (1, *sides)

    def _is_per_channel(self, node: Node) -> bool:
        """Return whether ``node`` works on tensors of one shape, and on constants for all or by channel."""
        result = self.values.get(node.output)
        if len(node.outputs) != 1 or result is None:
            return False
        tensors = [name for name in node.reads if name not in self._weights]
        constants = [self._weights[name] for name in node.reads if name in self._weights]
        return (
            all(self.values.get(name) == result for name in tensors)
            and len({self._sides[name] for name in tensors if name in self._sides}) == 1
            and all(
                math.prod(one) == 1 or (set(one[:-1]) <= {1} and one[-1] == result.shape[-1])
                for one in constants
            )
        )

    def _computed(self, node: Node, *, is_sum: bool) -> list[Node]:
        """Return ``node`` on images, and what makes its result for those that read none."""
        on_images = self._on_images(node)
        if not is_sum or self._summed.isdisjoint(node.inputs):
            return [node, *on_images]
        # The convolution adds it up: it is not made twice.
        self._summed.add(node.output)
        return [*on_images, *self._from_image(node.output)]

    def _on_images(self, node: Node) -> list[Node]:
        """Return ``node`` on images; what has none gets one."""
        sides = next(self._sides[name] for name in node.inputs if name in self._sides)
        made = [
            before
            for name in dict.fromkeys(node.reads)
            for before in (
                self._by_channel(name) if name in self._weights else self._with_image(name, sides)
            )
        ]
        image = self.fresh(f"{node.output}/image")
        self._name_image(node.output, image, sides)
        inputs = [self._images.get(name, name) for name in node.inputs]
        return [*made, node.replaced(inputs, [image], "")]

    def _with_image(self, name: str, sides: Sides) -> list[Node]:
        """Return nodes that make an image of ``name``, none where there is one already."""
        if name in self._images:
            return []
        reshape = self.makers.get(name)
        if reshape is not None and reshape.operator == Op.Reshape and self._is_shared(reshape):
            source = reshape.inputs[0]
            before = self._with_image(source, sides)
            if self._sides[source] == sides:
                self._name_image(name, *self._image_of(source))
                return before
        last, image = self.fresh(f"{name}/last"), self.fresh(f"{name}/image")
        self._name_image(name, image, sides)
        return [
            self.reshape(name, last, (1, *sides, self.values[name].shape[-1])),
            self.node(Op.Transpose, [last], [image], perm=_TO_IMAGE),
        ]

    def _by_channel(self, name: str) -> list[Node]:
        """Return nodes that make the constant ``name`` one a channel of an image; a single one stays."""
        shape = self._weights[name]
        if name in self._images or math.prod(shape) == 1:
            return []
        self._images[name] = self.fresh(f"{name}/channels")
        return [self.reshape(name, self._images[name], (shape[-1], 1, 1))]

    def _image_of(self, name: str) -> tuple[str, Sides]:
        return self._images[name], self._sides[name]

    def _name_image(self, name: str, image: str, sides: Sides) -> None:
        self._images[name], self._sides[name] = image, sides


# Transposed convolutions, as convolutions that make all pixels between two of the input at once.
#
# ONNX Runtime computes a transposed convolution unrolled: the products of each pixel with a whole kernel
# lie in memory of their own, and are added up where they belong (56 MiB for 16 channels at 180 x 320
# pixels and a kernel of 16 x 16). With a stride of s each result is a sum over every s-th tap alone. So a
# convolution of s x s times as many channels makes them, and DepthToSpace puts them side by side. That
# one has a blocked kernel, and both run on rows.
#
# The same sums in another order, and products with zeros.

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

    def __init__(self, graph: Graph, block: int) -> None:
        super().__init__(graph)
        self._block = block

    def replaced(self, node: Node) -> list[Node] | None:
        axes = self._axes(node)
        return None if axes is None else self._convolved(node, *axes)

    def _axes(self, node: Node) -> tuple[_Axis, _Axis] | None:
        """Return how a convolution does what ``node`` does; None: it is no transposed one, or none does."""
        transposed = self.operator(node) if node.operator == Op.ConvTranspose else None
        if not isinstance(transposed, TransposedConvolution):
            return None
        if self.shape(node.output) != transposed.y.shape:
            return None
        if not all(name in self.constants for name in node.inputs[1:] if name):
            return None
        windows, channels = transposed.windows, transposed.x.shape[1]
        plain = transposed.groups == 1 and set(windows.dilations) == {1} and len(windows.axes) == 2
        computed = self._block == 1 or channels < self._block or channels % _CHANNELS == 0
        if not plain or not computed or len(set(windows.strides)) != 1:
            return None
        rows, columns = map(_axis, windows.axes, windows.result, windows.size)
        if rows is None or columns is None:
            return None
        crops = rows.crops or columns.crops
        return None if crops and self.opsets.get("", 0) < _OPSET else (rows, columns)

    def _convolved(self, node: Node, rows: _Axis, columns: _Axis) -> list[Node]:
        x, weight, *bias = node.inputs
        title, size = node.output, rows.stride
        inputs, features, *kernel_sides = self.constants[weight].shape
        nodes: list[Node] = []

        def new(kind: Op, read: Sequence[str], **given: Any) -> str:
            output = self.fresh(f"{title}/{kind.lower()}")
            nodes.append(self.node(kind, read, [output], **given))
            return output

        def taken(name: str, axis: int, of: _Axis) -> str:
            shape = [inputs, features, *(len(rows.taps), size)[: 2 * (axis > 2)]]
            shape += kernel_sides[axis > 2 :]
            shape[axis] = 1
            zeros = self.constant(f"{title}/zeros", np.zeros(shape, np.float32))
            index = self.constant(f"{title}/taps", np.array(of.taps, np.int64))
            return new(Op.Gather, [new(Op.Concat, [name, zeros], axis=axis), index], axis=axis)

        # [inputs, features, kernel rows, places, kernel columns, places]
        kernel = taken(taken(weight, 2, rows), 4, columns)
        kernel = new(Op.Transpose, [kernel], perm=[3, 5, 1, 0, 2, 4])
        sides = [len(rows.taps), len(columns.taps)]
        shape = np.array([size * size * features, inputs, *sides], np.int64)
        kernel = new(Op.Reshape, [kernel, self.constant(f"{title}/shape", shape)])
        if any(bias):
            every = self.constant(f"{title}/features", np.tile(np.arange(features), size * size))
            bias = [new(Op.Gather, [bias[0], every], axis=0)]
        pads = [rows.before, columns.before, rows.after, columns.after]
        image = new(Op.Conv, [x, kernel, *filter(None, bias)], kernel_shape=sides, pads=pads)
        nodes[-1] = nodes[-1].replaced(name=node.name)
        if size > 1:
            image = new(Op.DepthToSpace, [image], blocksize=size)
        for axis, of in ((2, rows), (3, columns)):
            if of.crops:
                ends = ([0], [of.made], [axis])
                given = [self.constant(f"{title}/crop", np.array(end, np.int64)) for end in ends]
                image = new(Op.Slice, [image, *given])
        return [*nodes[:-1], nodes[-1].replaced(outputs=[title])]


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
