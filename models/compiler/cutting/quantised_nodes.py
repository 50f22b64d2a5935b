"""Tasks of quantised layers (models/network/operators/quantised.py), read from nodes one behind the other.

One convolution or product with channels last, the maxima of its windows, a table in which bytes are looked
up, a sum; layers around a depthwise one, with the sum behind them (seed 004, Fig. 5); in front of layers
what quantises an image, cuts a rectangle out of it and puts channels last, or puts several tensors
together; the average of each channel.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from models.compiler.analysis.graph import Graph
from models.graphs.nodes import domain_of, made, node_of
from models.network.fields import Array
from models.network.node import Known, Node, NodeReader, UnsuitedError
from models.network.operators.quantised import (
    BYTES,
    Concatenation,
    Part,
    Quantised,
    QuantisedAverage,
    QuantisedLayer,
    QuantisedTask,
    Rectangle,
    Scaling,
    Sum,
    Table,
)
from models.network.windows import SAME, Windows

CONVOLUTION, PRODUCT = "com.microsoft.QLinearConv", "com.microsoft.QGemm"
_AVERAGE = "com.microsoft.QLinearGlobalAveragePool"
_CONCATENATION, _SUM = "com.microsoft.QLinearConcat", "com.microsoft.QLinearAdd"
_MAXIMA = "com.microsoft.NhwcMaxPool"
# Axes of an image, and how they are turned so that channels lie last.
_IMAGE, _CHANNELS_LAST = 4, [0, 2, 3, 1]
# The element type of numbers of bytes, as ONNX has it.
_INT32 = 6
_SIGNED = {"uint8": False, "int8": True}


class Found(NamedTuple):
    """A task of the nodes up to ``end``; ``names``: of its tensors, by their numbers."""

    end: int
    task: Quantised
    names: tuple[str, ...]


@dataclass(frozen=True)
class _Image:
    """What has been read so far: ``name`` is bytes of so many channels of each pixel."""

    name: str
    size: tuple[int, int]
    channels: int


class Tasks:
    """Reads tasks from nodes of ``graph``.

    ``most_weights``: bytes that a convolution has at most, since all of a task are there at once.
    """

    def __init__(self, graph: Graph, most_weights: int | None = None) -> None:
        self.graph = graph
        self.most_weights = most_weights
        self.known = Known(self._array, graph.constants.get)
        self._opsets = {domain_of(item.domain): item.version for item in graph.opsets}
        self._nodes: dict[int, Node] = {}

    def node(self, index: int) -> Node:
        if index not in self._nodes:
            self._nodes[index] = node_of(self.graph.nodes[index], self._opsets)
        return self._nodes[index]

    def _array(self, name: str) -> Array | None:
        known = name in self.graph.values or name in self.graph.constants
        return self.graph.array(name) if known else None

    def longest(self, first: int) -> Found | None:
        """Return the longest task that begins with node ``first``; None: none does."""
        return _Reader(self, len(self.graph.nodes)).found(first)

    def whole(self, nodes: range, ports: Sequence[str]) -> Found | None:
        """Return the task that ``nodes`` are, whose first tensors are ``ports``; None: something else."""
        found = _Reader(self, nodes.stop, ports).found(nodes.start)
        return found if found is not None and found.end == nodes.stop else None


class _Reader:
    """Reads one task of ``tasks`` up to node ``end``; ``ports``: names of its first tensors.

    Methods raise UnsuitedError where nodes are something else.
    """

    def __init__(self, tasks: Tasks, end: int, ports: Sequence[str] = ()) -> None:
        self._tasks = tasks
        self._graph = tasks.graph
        self._end = end
        self._numbers = {name: number for number, name in enumerate(ports)}
        self._at = 0  # the next node

    def found(self, first: int) -> Found | None:
        """Return the task that begins with node ``first``; None: none does."""
        self._at = first
        try:
            average = self._tasks.node(first).operator == _AVERAGE
            return self._checked(self._average() if average else self._task())
        except UnsuitedError:
            return None

    def _checked(self, task: Quantised) -> Found:
        """Return ``task``, whose tensors fit."""
        if fault := task.fault():
            raise UnsuitedError(fault)
        names = tuple(self._numbers)
        for tensor in task.tensors():
            array = self._known(names[tensor.number])
            fits = (array.dtype, math.prod(array.shape)) == (tensor.dtype, tensor.count)
            if not fits or tensor.passes != (names[tensor.number] in self._graph.values):
                raise UnsuitedError(f"{tensor.what} does not fit")
        result = self._known(made(self._graph.nodes[self._at - 1])[0])
        if result.dtype != task.result.dtype or result.n_bytes != task.result.n_bytes:
            raise UnsuitedError("the result does not fit")
        return Found(self._at, task, names)

    def _known(self, name: str) -> Array:
        array = self._tasks.known.array(name)
        if array is None:
            raise UnsuitedError("an array is not known")
        return array

    def _number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def _next(self) -> str:
        """Return the operator of the next node if it alone reads what the one before it makes, else ""."""
        if self._at >= self._end:
            return ""
        names = made(self._graph.nodes[self._at - 1])
        alone = len(names) == 1 and names[0] not in self._graph.outputs
        alone = alone and self._graph.readers.get(names[0]) == [self._at]
        return self._tasks.node(self._at).operator if alone else ""

    def _take(self) -> NodeReader:
        """Return the next node, which has one output and lies in no region."""
        node = self._tasks.node(self._at)
        if self._graph.region(self._at) is not None or len(node.outputs) != 1:
            raise UnsuitedError("in a region, or of several outputs")
        self._at += 1
        return NodeReader(node, self._tasks.known)

    def _follow(self, operator: str) -> NodeReader:
        """As ``_take``, of an ``operator`` that alone reads what the node before it makes."""
        if self._next() != operator:
            raise UnsuitedError(f"no {operator} follows")
        return self._take()

    def _image(self, name: str) -> _Image:
        """Return the value ``name`` as bytes with channels last; the rows of a matrix are pixels."""
        array = self._graph.values.get(name)
        if array is None or array.dtype not in _SIGNED:
            raise UnsuitedError("no bytes")
        if len(array.shape) == 2:
            rows, channels = array.shape
            return _Image(name, (1, rows), channels)
        if len(array.shape) != _IMAGE or array.shape[0] != 1:
            raise UnsuitedError("no image")
        _, height, width, channels = array.shape
        return _Image(name, (height, width), channels)

    def _scaling(self, read: NodeReader, at: int) -> Scaling:
        """Return the scale and zero point of inputs ``at`` and the next."""
        scale, zero = read.name(at), read.name(at + 1)
        signed = _SIGNED.get(self._known(zero).dtype)
        if signed is None:
            raise UnsuitedError("no bytes")
        return Scaling(scale=self._number(scale), zero=self._number(zero), signed=signed)

    def _task(self) -> QuantisedTask:
        operator = self._tasks.node(self._at).operator
        rectangle: Rectangle | None = None
        joined: Concatenation | None = None
        source = self._tasks.node(self._at).inputs[:1]
        if operator == "QuantizeLinear":
            rectangle, image = self._rectangle()
        elif operator == _CONCATENATION:
            joined, image = self._concatenation()
            source = self._tasks.node(self._at - 1).inputs[2:3]
        elif operator in (CONVOLUTION, PRODUCT):
            image = self._image(source[0])
        else:
            raise UnsuitedError("no layer")
        number = self._number(source[0])
        layer, image = self._layer(self._take(), image)
        task = QuantisedTask(source=number, layers=(layer,), rectangle=rectangle, joined=joined)
        first = self._at
        task = task if layer.depthwise else self._behind(task, image)
        if self._at > first:
            return task
        task = self._around(task, image)
        if joined is not None and self._at > first:
            raise UnsuitedError("joined before layers around a depthwise one")
        return task

    def _rectangle(self) -> tuple[Rectangle, _Image]:
        """Take the nodes that quantise a rectangle of planes of the request and put channels last."""
        read = self._take()
        planes = read.floats(0)
        if len(planes.shape) != _IMAGE or planes.shape[0] != 1:
            raise UnsuitedError("no image")
        if planes.name not in self._graph.inputs:
            raise UnsuitedError("not of the request")
        self._number(planes.name)
        scaling, low, high = self._scaling(read, 1), [0] * _IMAGE, list(planes.shape)
        while self._next() == "Slice":
            cut = self._take()
            axes, firsts, ends = (cut.listed(at, "") for at in (3, 1, 2))
            if cut.has(4) and set(cut.listed(4, "")) != {1}:
                raise UnsuitedError("steps")
            for axis, first, end in zip(axes, firsts, ends, strict=True):
                last = min(end, planes.shape[axis])
                whole = (low[axis], high[axis]) == (0, planes.shape[axis])
                if axis not in (2, 3) or not whole or not 0 <= first < last:
                    raise UnsuitedError("no rectangle of it")
                low[axis], high[axis] = first, last
        turned = self._follow("Transpose")
        if turned.attribute("perm") != _CHANNELS_LAST or self._next() != CONVOLUTION:
            raise UnsuitedError("channels do not lie last, or no layer reads them")
        size = (high[2] - low[2], high[3] - low[3])
        image = _Image(turned.output, size, planes.shape[1])
        return Rectangle(first_row=low[2], first_column=low[3], made=scaling), image

    def _concatenation(self) -> tuple[Concatenation, _Image]:
        """Take the node that puts tensors one behind the other along channels."""
        read = self._take()
        read.require("axis", -1, _IMAGE - 1)
        images, parts = [], []
        for at in range(2, len(read.node.inputs), 3):
            image = self._image(read.name(at))
            images.append(image)
            parts.append(
                Part(
                    source=self._number(image.name),
                    channels=image.channels,
                    given=self._scaling(read, at + 1),
                )
            )
        if len({image.size for image in images}) != 1 or self._next() != CONVOLUTION:
            raise UnsuitedError("images of several sizes, or no layer reads them")
        channels = sum(part.channels for part in parts)
        made_image = _Image(read.output, images[0].size, channels)
        return Concatenation(parts=tuple(parts), made=self._scaling(read, 0)), made_image

    def _layer(self, read: NodeReader, image: _Image) -> tuple[QuantisedLayer, _Image]:
        """Return the convolution or product of ``image`` that a node is, and what it makes."""
        if read.name(0) != image.name:
            raise UnsuitedError("reads something else")
        if read.node.operator == CONVOLUTION:
            layer = self._convolution(read, image)
        elif read.node.operator == PRODUCT:
            layer = self._product(read, image)
        else:
            raise UnsuitedError("no layer")
        rows, columns = layer.windows.result
        return layer, _Image(read.output, (rows, columns), layer.filters)

    def _convolution(self, read: NodeReader, image: _Image) -> QuantisedLayer:
        read.require("auto_pad", "NOTSET")
        weights = read.constant(3)
        if not read.attribute("channels_last") or weights.ndim != _IMAGE:
            raise UnsuitedError("channels come first")
        if self._tasks.most_weights is not None and weights.nbytes > self._tasks.most_weights:
            raise UnsuitedError("large weights")
        filters, depth, *kernel = weights.shape
        group = read.attribute("group", 1)
        depthwise = group == filters == image.channels and filters > 1
        if depth * group != image.channels or not (depthwise or group == 1):
            raise UnsuitedError("groups")
        windows = read.windows(kernel, image.size)
        return self._of(read, image, filters, windows, depthwise=depthwise, bias=8, made=6)

    def _product(self, read: NodeReader, image: _Image) -> QuantisedLayer:
        read.require("transA", 0)
        read.require("alpha", 1.0)
        weights = read.constant(3)
        by_inputs = not read.attribute("transB", 0)
        if weights.ndim != 2 or weights.shape[1 - by_inputs] != image.channels:
            raise UnsuitedError("weights of another shape")
        filters = weights.shape[by_inputs]
        if read.has(6) and read.constant(6).shape != (filters,):
            raise UnsuitedError("biases are broadcast")
        windows = Windows((SAME, SAME), image.size, image.size)
        return self._of(read, image, filters, windows, by_inputs=by_inputs, bias=6, made=7)

    def _of(
        self,
        read: NodeReader,
        image: _Image,
        filters: int,
        windows: Windows,
        *,
        bias: int,
        made: int,
        depthwise: bool = False,
        by_inputs: bool = False,
    ) -> QuantisedLayer:
        """Return the layer whose bias is input ``bias``, and the scale of what it makes ``made``."""
        counts = [read.constant(at).size for at in (4, 5)]
        scales_apart, zeros_apart = (count > 1 for count in counts)
        return QuantisedLayer(
            weights=self._number(read.name(3)),
            bias=self._number(read.name(bias)) if read.has(bias) else None,
            given=self._scaling(read, 1),
            weight=self._scaling(read, 4),
            made=self._scaling(read, made),
            channels=image.channels,
            filters=filters,
            windows=windows,
            depthwise=depthwise,
            by_inputs=by_inputs,
            scales_apart=scales_apart,
            zeros_apart=zeros_apart,
        )

    def _behind(self, task: QuantisedTask, image: _Image) -> QuantisedTask:
        """Return ``task`` of a layer alone with what is made of its bytes at once."""
        adds = self._tasks.node(self._at - 1).operator == CONVOLUTION
        for step in (self._pool, self._table, self._sum):
            start = self._at
            try:
                if step != self._sum or (adds and task.pool is None):
                    task, image = step(task, image)
            except UnsuitedError:
                self._at = start
        return task

    def _around(self, task: QuantisedTask, image: _Image) -> QuantisedTask:
        """Return ``task`` with the layers around a depthwise one, and the sum behind them."""
        for step in (self._depthwise, self._projected, self._sum):
            start = self._at
            try:
                task, image = step(task, image)
            except UnsuitedError:
                self._at = start
                break
        return task

    def _depthwise(self, task: QuantisedTask, image: _Image) -> tuple[QuantisedTask, _Image]:
        """Return ``task`` with the depthwise layer behind the first one, unless it is that."""
        if task.layers[0].depthwise:
            return task, image
        task, image = self._with_layer(task, image)
        if task.depthwise < 0:
            raise UnsuitedError("no depthwise layer")
        return task, image

    def _projected(self, task: QuantisedTask, image: _Image) -> tuple[QuantisedTask, _Image]:
        """Return ``task`` with the layer behind the depthwise one."""
        task, image = self._with_layer(task, image)
        if task.layers[-1].depthwise or not task.layers[-1].is_pointwise:
            raise UnsuitedError("a window")
        return task, image

    def _with_layer(self, task: QuantisedTask, image: _Image) -> tuple[QuantisedTask, _Image]:
        layer, image = self._layer(self._follow(CONVOLUTION), image)
        return replace(task, layers=(*task.layers, layer)), image

    def _pool(self, task: QuantisedTask, image: _Image) -> tuple[QuantisedTask, _Image]:
        """Take the maxima of windows of ``image``."""
        read = self._follow(_MAXIMA)
        read.require("auto_pad", "NOTSET")
        windows = read.windows(read.attribute("kernel_shape"), image.size)
        task = replace(task, pool=windows)
        if fault := task.fault():
            raise UnsuitedError(fault)
        rows, columns = windows.result
        return task, _Image(read.output, (rows, columns), image.channels)

    def _table(self, task: QuantisedTask, image: _Image) -> tuple[QuantisedTask, _Image]:
        """Take the two nodes that look up ``image`` in a table (optimising/tables.py)."""
        self._follow("Cast").require("to", _INT32)
        read = self._follow("Gather")
        read.require("axis", 0)
        values = read.constant(0)
        signed = _SIGNED.get(values.dtype.name)
        if signed is None or values.shape != (BYTES,):
            raise UnsuitedError("no table of bytes")
        table = Table(values=self._number(read.name(0)), signed=signed)
        return replace(task, table=table), _Image(read.output, image.size, image.channels)

    def _sum(self, task: QuantisedTask, image: _Image) -> tuple[QuantisedTask, _Image]:
        """Take the sum of ``image`` and another value of its shape."""
        read = self._follow(_SUM)
        first, second = read.name(0), read.name(3)
        other = self._image(first if image.name == second else second)
        if first == second or (other.size, other.channels) != (image.size, image.channels):
            raise UnsuitedError("another shape")
        one, two, three = (self._scaling(read, at) for at in (1, 4, 6))
        addition = Sum(
            other=self._number(other.name),
            over=image.name == second,
            first=one,
            second=two,
            made=three,
        )
        return replace(task, addition=addition), _Image(read.output, image.size, image.channels)

    def _average(self) -> QuantisedAverage:
        """Take the node that averages each channel."""
        read = self._take()
        image = self._image(read.name(0))
        if not read.attribute("channels_last"):
            raise UnsuitedError("channels come first")
        return QuantisedAverage(
            source=self._number(image.name),
            given=self._scaling(read, 1),
            made=self._scaling(read, 3),
            channels=image.channels,
            pixels=math.prod(image.size),
        )
