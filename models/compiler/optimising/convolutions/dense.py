"""Fully connected layers on many rows, as convolutions of one pixel.

A row is a token of a transformer, or a pixel of an image whose channels lie last. ONNX Runtime computes
them as Gemm, whose result does not lie together by output channel: such a layer cannot be streamed in
chunks. On an image [1, channels, rows, columns] it is a convolution, which has a blocked kernel whose
weights lie as it reads them, and operators on elements around it (GELU, a sum) stay in that layout.

This is said to ONNX Runtime before it blocks the network: images are made beside the other forms, and what
nobody reads is left out.
"""

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from models.graphs.nodes import attributes, live, reads, replace_nodes
from models.network.fields import Array
from models.network.operators.elements import POINTWISE

_DOMAINS = ("", "ai.onnx")
_TO_IMAGE, _FROM_IMAGE = [0, 3, 1, 2], [0, 2, 3, 1]
_RANK = 4
Shape = tuple[int, ...]
#: Rows and columns of an image.
Sides = tuple[int, int]


def as_convolutions(model: onnx.ModelProto, values: Mapping[str, Array], block: int) -> bool:
    """Rewrite ``model``, whose constants ONNX Runtime has folded; return whether anything has changed.

    ``values``: of known size, by name. ``block``: channels in a block, which must divide those of a layer;
    1: there is no blocked layout, and nothing to gain.
    """
    if block == 1:
        return False
    rewriter = _Rewriter(model, values, block)
    nodes = [made for node in model.graph.node for made in rewriter.rewritten(node)]
    if not rewriter.found:
        return False
    replace_nodes(model, nodes)
    replace_nodes(model, live(model))
    model.graph.initializer.extend(rewriter.constants)
    return True


class _Rewriter:
    """Goes through the nodes once; ``_images``: what a value is called as [1, channels, rows, columns]."""

    def __init__(self, model: onnx.ModelProto, values: Mapping[str, Array], block: int) -> None:
        self.constants: list[onnx.TensorProto] = []
        self.found = False
        self._values = values
        self._block = block
        self._weights = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
        self._uses = Counter(name for node in model.graph.node for name in reads(node))
        self._makers = {name: node for node in model.graph.node for name in node.output}
        inputs = (port.name for port in model.graph.input)
        self._names = {*inputs, *self._weights, *self._makers}
        self._images: dict[str, str] = {}
        self._sides: dict[str, Sides] = {}

    def rewritten(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return ``node``, or what makes the same; and what makes an image of it."""
        if node.domain not in _DOMAINS:
            return [node]
        if self._is_dense(node):
            self.found = True
            return self._convolved(node)
        if self._images.keys().isdisjoint(node.input):
            return [node]
        if node.op_type == "Reshape" and self._keeps_channels(node):
            self._name_image(node.output[0], *self._image_of(node.input[0]))
        elif node.op_type == "Transpose" and self._makes_image(node):
            return [helper.make_node("Identity", [self._images[node.input[0]]], node.output)]
        elif node.op_type in POINTWISE and self._is_per_channel(node):
            return [node, *self._on_images(node)]
        return [node]

    def _is_dense(self, node: onnx.NodeProto) -> bool:
        """Return whether ``node`` multiplies several rows by a matrix that nothing else reads."""
        if node.op_type not in ("Gemm", "MatMul") or node.input[0] not in self._values:
            return False
        given = attributes(node)
        x, matrix = self._values[node.input[0]], self._weights.get(node.input[1], ())
        plain = given.get("alpha", 1) == given.get("beta", 1) == 1 and not given.get("transA", 0)
        if not plain or len(matrix) != 2 or self._uses[node.input[1]] != 1 or len(x.shape) < 2:
            return False
        channels, features = matrix[::-1] if given.get("transB", 0) else matrix
        biases = [self._weights.get(name) for name in node.input[2:] if name]
        return (
            x.dtype == "float32"
            and math.prod(x.shape[:-1]) > 1
            and channels % self._block == features % self._block == 0
            and all(bias == (features,) for bias in biases)
            and node.output[0] in self._values
        )

    def _convolved(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        x, weight, *bias = node.input
        before = self._with_image(x, self._own_sides(x))
        source, sides = self._image_of(x)
        result = self._values[node.output[0]]
        by_row = attributes(node).get("transB", 0)
        matrix, kernel = self._fresh(f"{weight}/rows"), self._fresh(f"{weight}/kernel")
        image, back = self._fresh(f"{node.output[0]}/image"), self._fresh(f"{node.output[0]}/last")
        self._name_image(node.output[0], image, sides)
        features, channels = result.shape[-1], self._values[x].shape[-1]
        convolution = helper.make_node(
            "Conv", [source, kernel, *bias], [image], name=node.name, kernel_shape=[1, 1]
        )
        return [
            *before,
            *([] if by_row else [helper.make_node("Transpose", [weight], [matrix], perm=[1, 0])]),
            self._reshape(weight if by_row else matrix, kernel, (features, channels, 1, 1)),
            convolution,
            helper.make_node("Transpose", [image], [back], perm=_FROM_IMAGE),
            self._reshape(back, node.output[0], result.shape),
        ]

    def _own_sides(self, name: str) -> Sides:
        """Return rows and columns of the image that the rows of ``name`` are pixels of, else one row."""
        channels = self._values[name].shape[-1]
        rows = math.prod(self._values[name].shape[:-1])
        while name in self._values and self._values[name].shape[-1:] == (channels,):
            shape = self._values[name].shape
            if len(shape) == _RANK and shape[0] == 1:
                return shape[1], shape[2]
            maker = self._makers.get(name)
            if maker is None or maker.op_type != "Reshape":
                break
            name = maker.input[0]
        return 1, rows

    def _keeps_channels(self, node: onnx.NodeProto) -> bool:
        before, after = (self._values.get(name) for name in (node.input[0], node.output[0]))
        return before is not None and after is not None and before.shape[-1:] == after.shape[-1:]

    def _makes_image(self, node: onnx.NodeProto) -> bool:
        result = self._values.get(node.output[0])
        sides = self._sides[node.input[0]]
        turned = attributes(node).get("perm") == _TO_IMAGE
        return turned and result is not None and (result.shape[0], *result.shape[2:]) == (1, *sides)

    def _is_per_channel(self, node: onnx.NodeProto) -> bool:
        """Return whether ``node`` works on tensors of one shape, and on constants for all or by channel."""
        result = self._values.get(node.output[0])
        if len(node.output) != 1 or result is None:
            return False
        tensors = [name for name in reads(node) if name not in self._weights]
        constants = [self._weights[name] for name in reads(node) if name in self._weights]
        return (
            all(self._values.get(name) == result for name in tensors)
            and len({self._sides[name] for name in tensors if name in self._sides}) == 1
            and all(
                math.prod(one) == 1 or (set(one[:-1]) <= {1} and one[-1] == result.shape[-1])
                for one in constants
            )
        )

    def _on_images(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return ``node`` on images; what has none gets one."""
        sides = next(self._sides[name] for name in node.input if name in self._sides)
        made = [
            before
            for name in dict.fromkeys(reads(node))
            for before in (
                self._by_channel(name) if name in self._weights else self._with_image(name, sides)
            )
        ]
        image = onnx.NodeProto()
        image.CopyFrom(node)
        image.name = ""
        image.input[:] = [self._images.get(name, name) for name in node.input]
        image.output[0] = self._fresh(f"{node.output[0]}/image")
        self._name_image(node.output[0], image.output[0], sides)
        return [*made, image]

    def _with_image(self, name: str, sides: Sides) -> list[onnx.NodeProto]:
        """Return nodes that make an image of ``name``, none where there is one already."""
        if name in self._images:
            return []
        last, image = self._fresh(f"{name}/last"), self._fresh(f"{name}/image")
        self._name_image(name, image, sides)
        return [
            self._reshape(name, last, (1, *sides, self._values[name].shape[-1])),
            helper.make_node("Transpose", [last], [image], perm=_TO_IMAGE),
        ]

    def _by_channel(self, name: str) -> list[onnx.NodeProto]:
        """Return nodes that make the constant ``name`` one a channel of an image; a single one stays."""
        shape = self._weights[name]
        if name in self._images or math.prod(shape) == 1:
            return []
        self._images[name] = self._fresh(f"{name}/channels")
        return [self._reshape(name, self._images[name], (shape[-1], 1, 1))]

    def _image_of(self, name: str) -> tuple[str, Sides]:
        return self._images[name], self._sides[name]

    def _name_image(self, name: str, image: str, sides: Sides) -> None:
        self._images[name], self._sides[name] = image, sides

    def _reshape(self, name: str, result: str, shape: Shape) -> onnx.NodeProto:
        given = self._fresh(f"{result}/shape")
        self.constants.append(numpy_helper.from_array(np.array(shape, np.int64), given))
        return helper.make_node("Reshape", [name, given], [result])

    def _fresh(self, name: str) -> str:
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name
