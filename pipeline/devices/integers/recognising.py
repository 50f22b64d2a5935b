"""Which pieces are quantised layers that the native library computes: read from their graphs.

One convolution or product with channels last, the maxima of its windows, a table in which bytes are looked
up, a sum; layers around a depthwise one, with the sum behind them; in front of them what quantises a
rectangle of an image, or puts tensors together; the average of each channel. Everything else is ONNX
Runtime's.
"""

import math
from collections.abc import Sequence

from models.packs.records.pieces import Piece as PackPiece
from pipeline.devices.integers.layers import (
    Concatenation,
    QuantisedAverage,
    QuantisedLayer,
    QuantisedTask,
    Rectangle,
    Sum,
)
from pipeline.devices.integers.nodes import (
    IMAGE,
    MOST,
    Arrays,
    Image,
    MisfitError,
    NodeReader,
    OtherError,
    fits,
    require,
)
from pipeline.devices.integers.pieces import Node, Piece, PieceError, read_graph
from pipeline.devices.integers.structures import MOST_LAYERS

Recognised = QuantisedTask | QuantisedAverage

_CHANNELS_LAST = (0, 2, 3, 1)
# What comes behind layers.
_BEHIND = ("QLinearAdd", "NhwcMaxPool", "Cast")
# The operators, and how many inputs each has at least.
_INPUTS = {
    "QLinearConv": 8,
    "QGemm": 9,
    "QLinearAdd": 8,
    "QLinearConcat": 5,
    "QLinearGlobalAveragePool": 5,
    "NhwcMaxPool": 1,
    "Cast": 1,
    "Gather": 2,
    "QuantizeLinear": 3,
    "Slice": 4,
    "Transpose": 1,
}
_NAMES = (b"QLinear", b"QGemm")


def may_be_quantised(graph: bytes) -> bool:
    """Return whether a serialised piece names what is recognised; most pieces of most packs do not."""
    return any(name in graph for name in _NAMES)


def recognised(graph: bytes, piece: PackPiece) -> Recognised | None:
    """Return what ``piece``, whose serialised graph is ``graph``, computes; None: something else.

    Raises:
        MisfitError: it is a quantised layer whose tensors do not fit each other.
    """
    if not may_be_quantised(graph):
        return None
    try:
        read = read_graph(graph)
        _check_ports(read, piece)
        return _Reader(read, _arrays(read, piece)).found()
    except (PieceError, OtherError):
        return None


def _check_ports(read: Piece, piece: PackPiece) -> None:
    for kind, names, operands in (
        ("inputs", read.inputs, piece.inputs),
        ("outputs", read.outputs, piece.outputs),
    ):
        if len(names) != len(operands):
            raise MisfitError(f"{len(operands)} {kind}, of which its graph has {len(names)}")


def _arrays(read: Piece, piece: PackPiece) -> Arrays:
    ports = [*zip(read.inputs, piece.inputs, strict=True)]
    ports += zip(read.outputs, piece.outputs, strict=True)
    known = {name: (operand.dtype, operand.shape) for name, operand in ports}
    known |= {name: (array.dtype.name, array.shape) for name, array in read.tensors.items()}
    return known


class _Reader:
    """Reads the nodes of ``piece`` one after the other."""

    def __init__(self, piece: Piece, arrays: Arrays) -> None:
        self._piece = piece
        self._read = NodeReader(arrays)
        self._nodes = list(piece.nodes)

    def found(self) -> Recognised:
        """Return what all nodes are; raises OtherError, MisfitError."""
        require(len(self._piece.outputs) == 1 and bool(self._nodes))
        for node in self._nodes:
            known = node.operator in _INPUTS and len(node.outputs) == 1
            require(known and len(node.inputs) >= _INPUTS[node.operator])
        if self._nodes[0].operator == "QLinearGlobalAveragePool":
            require(len(self._nodes) == 1)
            return self._read.average(self._nodes[0])
        return self._task()

    def _task(self) -> QuantisedTask:
        source = self._nodes[0].inputs[0]
        rectangle: Rectangle | None = None
        joined: Concatenation | None = None
        if self._nodes[0].operator == "QuantizeLinear":
            rectangle, image = self._rectangle()
        elif self._nodes[0].operator == "QLinearConcat":
            joined, image = self._read.joined(self._nodes.pop(0), self._piece.inputs)
            source = joined.parts[0].source
        else:
            image = self._read.image(source)
        layers: list[QuantisedLayer] = []
        while self._nodes and self._nodes[0].operator not in _BEHIND:
            node = self._nodes.pop(0)
            require(node.inputs[0] == image.name)
            layer = self._read.layer(node, image)
            require(max(layer.channels, layer.filters) <= MOST)
            layers.append(layer)
            image = Image(node.outputs[0], layer.rows.made, layer.columns.made, layer.filters)
        addition, pool, table = None, None, None
        require(bool(layers))
        dense = len(layers) == 1 and not layers[0].depthwise
        require(dense or joined is None)
        if dense and self._next() == "NhwcMaxPool":
            node = self._nodes.pop(0)
            require(node.inputs[0] == image.name)
            pool = self._read.pool(node, image)
            image = Image(node.outputs[0], pool.rows.made, pool.columns.made, image.channels)
        if dense and self._next() == "Cast":
            require(len(self._nodes) > 1)
            table, image.name = self._read.table(image, *self._nodes[:2])
            del self._nodes[:2]
        if pool is None and self._next() == "QLinearAdd":
            node = self._nodes.pop(0)
            addition = self._read.sum(node, image, self._piece.inputs)
            image.name = node.outputs[0]
        require(not self._nodes and _goes_together(layers, addition))
        require(image.name == self._piece.outputs[0])
        task = QuantisedTask(
            source, image.name, tuple(layers), rectangle, addition, pool, table, joined
        )
        self._check_signs(task)
        _, shape = self._read.array(task.result)
        size = image.height * image.width * image.channels
        fits(math.prod(shape) == size, self._piece.nodes[-1], "the results")
        return task

    def _next(self) -> str:
        """Return the operator of the next node, "" behind the last one."""
        return self._nodes[0].operator if self._nodes else ""

    def _check_signs(self, task: QuantisedTask) -> None:
        """Check that bytes are signed or not wherever they are told of."""
        before = task.rectangle or task.joined
        kinds = [before.made.signed if before else self._read.signed(task.source)]
        for layer in task.layers:
            kinds += (layer.given.signed, layer.made.signed)
        if task.table is not None:
            kinds[-1] = self._read.signed(task.table)
        if task.addition is not None:
            of = task.addition
            own, other = (of.second, of.first) if of.over else (of.first, of.second)
            require(other.signed == self._read.signed(of.other))
            kinds += (own.signed, of.made.signed)
        kinds.append(self._read.signed(task.result))
        require(all(one == other for one, other in zip(kinds[::2], kinds[1::2], strict=True)))

    def _rectangle(self) -> tuple[Rectangle, Image]:
        """Take the nodes that quantise a rectangle of planes and put channels last."""
        node = self._nodes.pop(0)
        dtype, shape = self._read.array(node.inputs[0])
        require(dtype == "float32" and len(shape) == IMAGE and shape[0] == 1)
        made = self._read.scaling(node, 1)
        name, low, high = node.outputs[0], [0, 0], list(shape[2:])
        while self._nodes and self._nodes[0].operator == "Slice":
            cut = self._nodes.pop(0)
            require(cut.inputs[0] == name)
            axis, first, end = self._cut(cut)
            require(axis in (2, 3) and not low[axis - 2] and high[axis - 2] == shape[axis])
            end = min(end, shape[axis])
            require(0 <= first < end)
            low[axis - 2], high[axis - 2] = first, end
            name = cut.outputs[0]
        require(bool(self._nodes) and self._nodes[0].operator == "Transpose")
        turned = self._nodes.pop(0)
        require(turned.inputs[0] == name and turned.attributes.get("perm") == _CHANNELS_LAST)
        require(node.inputs[0] == self._piece.inputs[0])  # a request may hold that one
        image = Image(turned.outputs[0], high[0] - low[0], high[1] - low[1], shape[1])
        return Rectangle(shape, low[0], low[1], made), image

    def _cut(self, node: Node) -> tuple[int, int, int]:
        """Return axis, start and end of a Slice along one axis."""
        tensors = [self._piece.tensors.get(name) for name in node.inputs[1:]]
        numbers = [int(each.item()) for each in tensors if each is not None and each.size == 1]
        require(len(numbers) == len(tensors) and len(numbers) in (3, 4))
        require(numbers[3:] in ([], [1]))
        return numbers[2], numbers[0], numbers[1]


def _goes_together(layers: Sequence[QuantisedLayer], addition: Sum | None) -> bool:
    """Return whether the library computes ``layers`` as one."""
    depthwise = [at for at, layer in enumerate(layers) if layer.depthwise]
    if not 0 < len(layers) <= MOST_LAYERS or len(depthwise) > 1:
        return False
    if not depthwise:
        return len(layers) == 1
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
