"""Which pieces are quantised layers that the native library computes: read from their graphs.

One convolution or product with channels last; layers around a depthwise one, with the sum behind them; what
quantises a rectangle of an image in front of them; the average of each channel. Everything else is ONNX
Runtime's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from models.packs.records.pieces import Piece as PackPiece
from pipeline.devices.elementwise.pieces import Node, Piece, PieceError, read_graph
from pipeline.devices.integers.layers import (
    QuantisedAverage,
    QuantisedLayer,
    QuantisedTask,
    Rectangle,
    Scaling,
    Sum,
    Window,
)
from pipeline.devices.integers.structures import MOST_LAYERS

#: Of values and constants: element type and shape.
Arrays = Mapping[str, tuple[str, tuple[int, ...]]]
Recognised = QuantisedTask | QuantisedAverage

_IMAGE = 4
_CHANNELS_LAST = (0, 2, 3, 1)
_SIGNED = {"uint8": False, "int8": True}
# The operators, and how many inputs each has at least.
_INPUTS = {
    "QLinearConv": 8,
    "QGemm": 9,
    "QLinearAdd": 8,
    "QLinearGlobalAveragePool": 5,
    "QuantizeLinear": 3,
    "Slice": 4,
    "Transpose": 1,
}
_NAMES = (b"QLinear", b"QGemm")
# The library counts pixels, channels and padding with 32 bits, and so what is made of two of them. A file
# may say anything.
_MOST = 1 << 20


class _OtherError(Exception):
    """A piece is something else."""


def may_be_quantised(graph: bytes) -> bool:
    """Return whether a serialised piece names what is recognised; most pieces of most packs do not."""
    return any(name in graph for name in _NAMES)


def recognised(graph: bytes, piece: PackPiece) -> Recognised | None:
    """Return what ``piece``, whose serialised graph is ``graph``, computes; None: something else."""
    if not may_be_quantised(graph):
        return None
    try:
        read = read_graph(graph)
        counts = len(read.inputs), len(read.outputs)
        _require(counts == (len(piece.inputs), len(piece.outputs)))
        return _Reader(read, _arrays(read, piece)).task()
    except (PieceError, _OtherError):
        return None


def _arrays(read: Piece, piece: PackPiece) -> dict[str, tuple[str, tuple[int, ...]]]:
    ports = [*zip(read.inputs, piece.inputs, strict=True)]
    ports += zip(read.outputs, piece.outputs, strict=True)
    known = {name: (operand.dtype, operand.shape) for name, operand in ports}
    known |= {name: (array.dtype.name, array.shape) for name, array in read.tensors.items()}
    return known


@dataclass
class _Image:
    """What has been read so far: ``name`` is bytes [height, width, channels]."""

    name: str
    height: int
    width: int
    channels: int


class _Reader:
    """Reads the nodes of ``piece`` one after the other."""

    def __init__(self, piece: Piece, arrays: Arrays) -> None:
        self._piece = piece
        self._arrays = arrays
        self._nodes = list(piece.nodes)

    def task(self) -> Recognised:
        """Return what all nodes are; raises _OtherError."""
        _require(len(self._piece.outputs) == 1 and bool(self._nodes))
        for node in self._nodes:
            known = node.operator in _INPUTS and len(node.outputs) == 1
            _require(known and len(node.inputs) >= _INPUTS[node.operator])
        if self._nodes[0].operator == "QLinearGlobalAveragePool":
            return self._average(self._nodes[0])
        source = self._nodes[0].inputs[0]
        rectangle = self._rectangle() if self._nodes[0].operator == "QuantizeLinear" else None
        image = self._image(source) if rectangle is None else rectangle[1]
        layers: list[QuantisedLayer] = []
        addition = None
        while self._nodes:
            node = self._nodes.pop(0)
            if node.operator == "QLinearAdd":
                addition = self._sum(node, image, layers)
                image.name = node.outputs[0]
                _require(not self._nodes)
                break
            _require(node.inputs[0] == image.name)
            layer = self._layer(node, image)
            _require(max(layer.channels, layer.filters) <= _MOST)
            layers.append(layer)
            image = _Image(node.outputs[0], layer.rows.made, layer.columns.made, layer.filters)
        held = None if rectangle is None else rectangle[0]
        task = QuantisedTask(source, image.name, tuple(layers), held, addition)
        _require(image.name == self._piece.outputs[0] and _goes_together(layers, addition))
        self._check(task, image)
        return task

    def _check(self, task: QuantisedTask, made: _Image) -> None:
        """Check that bytes are signed or not wherever they are told of, and that the result has room."""
        signed = [(layer.given.signed, layer.made.signed) for layer in task.layers]
        before = task.rectangle.made.signed if task.rectangle else self._signed(task.source)
        kinds = [before, *(each for pair in signed for each in pair)]
        last = kinds[-1]
        if task.addition is not None:
            of_sum = task.addition
            own, other = (
                (of_sum.second, of_sum.first) if of_sum.over else (of_sum.first, of_sum.second)
            )
            _require(other.signed == self._signed(of_sum.other))
            kinds.append(own.signed)
            last = of_sum.made.signed
        _require(all(one == other for one, other in zip(kinds[::2], kinds[1::2], strict=False)))
        dtype, shape = self._array(task.result)
        size = made.height * made.width * made.channels
        _require(_SIGNED.get(dtype) == last and math.prod(shape) == size)

    def _signed(self, name: str) -> bool:
        dtype, _ = self._array(name)
        _require(dtype in _SIGNED)
        return _SIGNED[dtype]

    def _image(self, name: str) -> _Image:
        dtype, shape = self._array(name)
        _require(dtype in _SIGNED)
        if len(shape) == 2:  # the rows of a matrix are pixels
            return _Image(name, 1, *shape)
        _require(len(shape) == _IMAGE and shape[0] == 1)
        return _Image(name, *shape[1:])

    def _rectangle(self) -> tuple[Rectangle, _Image]:
        """Take the nodes that quantise a rectangle of planes and put channels last."""
        node = self._nodes.pop(0)
        dtype, shape = self._array(node.inputs[0])
        _require(dtype == "float32" and len(shape) == _IMAGE and shape[0] == 1)
        made = self._scaling(node, 1)
        name, low, high = node.outputs[0], [0, 0], list(shape[2:])
        while self._nodes and self._nodes[0].operator == "Slice":
            cut = self._nodes.pop(0)
            _require(cut.inputs[0] == name)
            axis, first, end = self._cut(cut)
            _require(axis in (2, 3) and not low[axis - 2] and high[axis - 2] == shape[axis])
            end = min(end, shape[axis])
            _require(0 <= first < end)
            low[axis - 2], high[axis - 2] = first, end
            name = cut.outputs[0]
        _require(bool(self._nodes) and self._nodes[0].operator == "Transpose")
        turned = self._nodes.pop(0)
        _require(turned.inputs[0] == name and turned.attributes.get("perm") == _CHANNELS_LAST)
        _require(node.inputs[0] == self._piece.inputs[0])  # a request may hold that one
        image = _Image(turned.outputs[0], high[0] - low[0], high[1] - low[1], shape[1])
        return Rectangle(shape, low[0], low[1], made), image

    def _cut(self, node: Node) -> tuple[int, int, int]:
        """Return axis, start and end of a Slice along one axis."""
        tensors = [self._piece.tensors.get(name) for name in node.inputs[1:]]
        numbers = [int(each.item()) for each in tensors if each is not None and each.size == 1]
        _require(len(numbers) == len(tensors) and len(numbers) in (3, 4))
        _require(numbers[3:] in ([], [1]))
        return numbers[2], numbers[0], numbers[1]

    def _layer(self, node: Node, image: _Image) -> QuantisedLayer:
        if node.operator == "QLinearConv" and node.domain == "com.microsoft":
            return self._convolution(node, image)
        _require(node.operator == "QGemm")
        return self._product(node, image)

    def _convolution(self, node: Node, image: _Image) -> QuantisedLayer:
        given = node.attributes
        _require(given.get("channels_last") == 1 and given.get("auto_pad", "NOTSET") == "NOTSET")
        dtype, weights = self._array(node.inputs[3])
        _require(dtype in _SIGNED and len(weights) == _IMAGE)
        filters, depth, *kernel = weights
        weight = self._scaling(node, 4, filters)
        _require(filters > 0 and depth > 0 and weight.signed == _SIGNED[dtype])
        group = given.get("group", 1)
        depthwise = group == filters == image.channels and depth == 1 and filters > 1
        _require(depthwise or (group == 1 and depth == image.channels))
        strides, steps = (_numbers(given.get(name), 1, 2) for name in ("strides", "dilations"))
        pads = _numbers(given.get("pads"), 0, 4)
        rows, columns = (
            _window(kernel[axis], strides[axis], steps[axis], (pads[axis], pads[axis + 2]), size)
            for axis, size in enumerate((image.height, image.width))
        )
        return QuantisedLayer(
            node.inputs[3],
            self._bias(node.inputs[8] if len(node.inputs) > 8 else "", filters),
            self._scaling(node, 1),
            weight,
            self._scaling(node, 6),
            image.channels,
            filters,
            rows,
            columns,
            depthwise=depthwise,
        )

    def _product(self, node: Node, image: _Image) -> QuantisedLayer:
        given = node.attributes
        plain = not given.get("transA", 0) and node.number("alpha", 1.0) == 1.0
        _require(plain and len(node.inputs) == 9)
        dtype, weights = self._array(node.inputs[3])
        _require(dtype in _SIGNED and len(weights) == 2)
        by_inputs = not given.get("transB", 0)
        filters, channels = weights[::-1] if by_inputs else weights
        weight = self._scaling(node, 4, filters)
        _require(0 < channels == image.channels and weight.signed == _SIGNED[dtype])
        _require(bool(node.inputs[7] and node.inputs[8]))
        return QuantisedLayer(
            node.inputs[3],
            self._bias(node.inputs[6], filters),
            self._scaling(node, 1),
            weight,
            self._scaling(node, 7),
            channels,
            filters,
            Window(given=image.height, made=image.height),
            Window(given=image.width, made=image.width),
            by_inputs=by_inputs,
        )

    def _bias(self, name: str, filters: int) -> str | None:
        if not name:
            return None
        dtype, shape = self._array(name)
        _require(dtype == "int32" and math.prod(shape) == filters)
        return name

    def _sum(self, node: Node, image: _Image, layers: Sequence[QuantisedLayer]) -> Sum:
        first, second = node.inputs[0], node.inputs[3]
        _require(bool(layers) and image.name in (first, second) and first != second)
        other = first if image.name == second else second
        dtype, shape = self._array(other)
        own = (1, image.height, image.width, image.channels)
        _require(other in self._piece.inputs and shape == own and dtype in _SIGNED)
        scalings = (self._scaling(node, at) for at in (1, 4, 6))
        return Sum(other, image.name == second, *scalings)

    def _average(self, node: Node) -> QuantisedAverage:
        dtype, shape = self._array(node.inputs[0])
        _require(len(self._nodes) == 1 and node.attributes.get("channels_last") == 1)
        _require(dtype in _SIGNED and len(shape) == _IMAGE and shape[0] == 1)
        given, made = self._scaling(node, 1), self._scaling(node, 3)
        pixels = math.prod(shape[1:-1])
        _require(0 < pixels <= _MOST and 0 < shape[-1] <= _MOST)
        result = self._array(node.outputs[0])
        _require(given.signed == _SIGNED[dtype] and math.prod(result[1]) == shape[-1])
        _require(_SIGNED.get(result[0]) == made.signed)
        return QuantisedAverage(node.inputs[0], node.outputs[0], given, made, shape[-1], pixels)

    def _scaling(self, node: Node, at: int, filters: int = 1) -> Scaling:
        """Return the scale and zero point of inputs ``at`` and the next: one, or one for each filter."""
        scale, zero = node.inputs[at], node.inputs[at + 1]
        (kind, scales), (dtype, zeros) = self._array(scale), self._array(zero)
        alike = {math.prod(scales), math.prod(zeros)} <= {1, filters}
        _require(kind == "float32" and dtype in _SIGNED and alike)
        return Scaling(scale, zero, _SIGNED[dtype])

    def _array(self, name: str) -> tuple[str, tuple[int, ...]]:
        _require(name in self._arrays)
        return self._arrays[name]


def _require(holds: bool) -> None:
    if not holds:
        raise _OtherError


def _numbers(given: object, default: int, count: int) -> tuple[int, ...]:
    """Return a list of so many numbers; without ``given`` all are ``default``."""
    if given is None:
        return (default,) * count
    if not isinstance(given, tuple) or len(given) != count:
        raise _OtherError
    return given


def _window(kernel: int, stride: int, step: int, pads: tuple[int, int], given: int) -> Window:
    reach = (kernel - 1) * step + 1
    _require(kernel > 0 and stride > 0 and step > 0 and min(pads) >= 0)
    _require(max(stride, step, reach, given, *pads) <= _MOST)
    made = (given + sum(pads) - reach) // stride + 1
    _require(made > 0)
    return Window(kernel, stride, step, pads[0], given, made)


def _goes_together(layers: Sequence[QuantisedLayer], addition: Sum | None) -> bool:
    """Return whether the library computes ``layers`` as one."""
    depthwise = [at for at, layer in enumerate(layers) if layer.depthwise]
    if not 0 < len(layers) <= MOST_LAYERS or len(depthwise) > 1:
        return False
    if not depthwise:
        return len(layers) == 1 and addition is None
    at = depthwise[0]
    behind = layers[at + 1 :]
    if at > 1 or len(behind) > 1 or (addition is not None and not behind):
        return False
    return all(
        layer.rows.kernel == layer.columns.kernel == 1
        and layer.rows.stride == layer.columns.stride == 1
        and layer.rows.given == layer.rows.made
        and layer.columns.given == layer.columns.made
        for layer in behind
    )
