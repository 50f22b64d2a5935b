"""Quantised layers as tasks, sequences of operators, and the tasks that run as one piece.

One convolution or product with channels last, the maxima of its windows, a table in which bytes are looked
up, a sum; layers around a depthwise one, with the sum behind them (seed 004, Fig. 5); in front of layers
what quantises an image, cuts a rectangle out of it and puts channels last, or puts several tensors
together; the average of each channel.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from models.compiler.analysis.node_groups import Fused, FusedNodes
from models.graphs.graph import Graph
from models.network.catalogue import traits_of
from models.network.names import Op
from models.network.node import Node, UnsuitedError
from models.network.operators.movement import strides_of
from models.network.operators.on_bytes import BYTE_TYPES, Numbers, Quantisation
from models.network.operators.quantised import (
    BYTES,
    ByteTable,
    Concatenation,
    JoinedTensor,
    Quantised,
    QuantisedAverage,
    QuantisedLayer,
    QuantisedTask,
    Rectangle,
    Scaling,
    Sum,
)
from models.network.operators.reading import (
    Combine,
    Conversion,
    Convolution,
    Movement,
    OnBytes,
    Pooling,
    Reduction,
)

# Axes of an image, and how they are turned so that channels lie last.
_IMAGE, _CHANNELS_LAST = 4, (0, 2, 3, 1)


class FoundTask(NamedTuple):
    """A task of the nodes up to ``end``; ``names``: of its tensors, by their numbers."""

    end: int
    task: Quantised
    names: tuple[str, ...]


def _longest_task(graph: Graph, first: int, most_weights: float = math.inf) -> FoundTask | None:
    """Return the longest task that begins with node ``first``; None: none does.

    ``most_weights``: bytes that a convolution has at most, since all of a task are there at once.
    """
    return _Reader(graph, len(graph.nodes), (), most_weights).found(first)


def whole_task(graph: Graph, nodes: range, ports: Sequence[str]) -> FoundTask | None:
    """Return the task that ``nodes`` are, whose first tensors are ``ports``; None: something else."""
    task = _Reader(graph, nodes.stop, ports, math.inf).found(nodes.start)
    return task if task is not None and task.end == nodes.stop else None


class _Reader:
    """Reads one task of ``graph`` up to node ``end``; ``ports``: names of its first tensors.

    Methods raise UnsuitedError where nodes are something else.
    """

    def __init__(self, graph: Graph, end: int, ports: Sequence[str], most_weights: float) -> None:
        self._graph = graph
        self._end = end
        self._most_weights = most_weights
        self._numbers = {name: number for number, name in enumerate(ports)}
        self._at = 0  # the next node

    def found(self, first: int) -> FoundTask | None:
        """Return the task that begins with node ``first``; None: none does."""
        self._at = first
        try:
            return self._checked(self._whole())
        except UnsuitedError:
            return None

    def _checked(self, task: Quantised) -> FoundTask:
        """Return ``task``, whose tensors fit."""
        if fault := task.fault():
            raise UnsuitedError(fault)
        names = tuple(self._numbers)
        for tensor in task.tensors():
            array = self._graph.array(names[tensor.number])
            fits = (array.dtype, math.prod(array.shape)) == (tensor.dtype, tensor.count)
            if not fits or tensor.passes != (names[tensor.number] in self._graph.values):
                raise UnsuitedError(f"{tensor.what} does not fit")
        result = self._graph.array(self._made)
        if result.dtype != task.result.dtype or result.n_bytes != task.result.n_bytes:
            raise UnsuitedError("the result does not fit")
        return FoundTask(self._at, task, names)

    def _number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def _scaling(self, of: Quantisation) -> Scaling:
        scale, zero = self._number(of.scale.name), self._number(of.zero.name)
        return Scaling(scale=scale, zero=zero, signed=of.dtype == "int8")

    @property
    def _made(self) -> str:
        """What the node before makes."""
        return self._graph.nodes[self._at - 1].made[0]

    def _take(self) -> Node:
        """Return the next node, which lies in no region."""
        if self._graph.region(self._at) is not None:
            raise UnsuitedError("in a region")
        self._at += 1
        return self._graph.nodes[self._at - 1]

    def _follow(self) -> Node:
        """As ``_take``, of a node that alone reads what the one before it makes."""
        names = self._graph.nodes[self._at - 1].made
        alone = len(names) == 1 and names[0] not in self._graph.outputs
        if self._at >= self._end or not alone or self._graph.readers.get(names[0]) != [self._at]:
            raise UnsuitedError("nothing follows that alone reads it")
        return self._take()

    def _next(self, kind: type[Numbers]) -> OnBytes[Numbers]:
        """Return the ``kind`` on bytes that follows."""
        operator = self._graph.operator(self._follow())
        if not isinstance(operator, OnBytes) or not isinstance(operator.operator, kind):
            raise UnsuitedError("another operator")
        return operator

    def _whole(self) -> Quantised:
        rectangle: Rectangle | None = None
        joined: Concatenation | None = None
        match first := self._graph.operator(self._take()):
            case OnBytes(operator=Reduction()):
                return self._average(first)
            case OnBytes(operator=Convolution(x=x)):
                source, layer = self._number(x.name), self._layer(first)
            case Conversion(x=x):
                source, rectangle = self._number(x.name), self._rectangle(first)
                layer = self._further()
            case OnBytes(operator=Movement()):
                joined = self._concatenation(first)
                source, layer = joined.parts[0].source, self._further()
            case _:
                raise UnsuitedError("no layer")
        task = QuantisedTask(source=source, layers=(layer,), rectangle=rectangle, joined=joined)
        return self._behind(task)

    def _rectangle(self, first: Conversion) -> Rectangle:
        """Take what cuts a rectangle out of quantised planes of the request and puts channels last."""
        if first.x.name not in self._graph.inputs or len(first.x.shape) != _IMAGE:
            raise UnsuitedError("no image of the request")
        scaling, row, column = self._scaling(first.scaling), 0, 0
        while True:
            move = self._graph.operator(self._follow())
            if not isinstance(move, Movement) or len(move.copies) != 1:
                raise UnsuitedError("channels do not lie last")
            (copy,) = move.copies
            shape, strides = copy.x.shape, strides_of(copy.x.shape)
            if copy.read == tuple(strides[axis] for axis in _CHANNELS_LAST):
                return Rectangle(first_row=row, first_column=column, made=scaling)
            _, channel, *begin = map(int, np.unravel_index(copy.start, shape))
            if copy.read != strides or channel or copy.sizes[1] != shape[1]:
                raise UnsuitedError("no rectangle of it")
            row, column = row + begin[0], column + begin[1]

    def _concatenation(self, of: OnBytes[Movement]) -> Concatenation:
        """Return tensors that are put one behind the other along channels."""
        parts, size = [], of.y.shape[:-1]
        for copy, given in zip(of.operator.copies, of.scales, strict=False):
            if len(size) != _IMAGE - 1 or copy.x.shape[:-1] != size:
                raise UnsuitedError("images of several sizes")
            source, channels = self._number(copy.x.name), copy.x.shape[-1]
            parts.append(JoinedTensor(source=source, channels=channels, given=self._scaling(given)))
        return Concatenation(parts=tuple(parts), made=self._scaling(of.scales[-1]))

    def _further(self) -> QuantisedLayer:
        """Return the layer of what was made."""
        source, convolution = self._made, self._next(Convolution)
        if convolution.operator.x.name != source:
            raise UnsuitedError("reads something else")
        return self._layer(convolution)

    def _layer(self, of: OnBytes[Convolution]) -> QuantisedLayer:
        """Return a convolution or a product."""
        operator, filters = of.operator, of.operator.filters
        depthwise = operator.is_depthwise and operator.groups == filters
        if not of.last or operator.x.shape[0] != 1 or not (depthwise or operator.groups == 1):
            raise UnsuitedError("channels come first, several images, or groups")
        if operator.bias is not None and operator.bias.shape != (filters,):
            raise UnsuitedError("biases are broadcast")
        if _is_image(of) and operator.weight.n_bytes > self._most_weights:
            raise UnsuitedError("large weights")
        given, weight, result = of.scales
        return QuantisedLayer(
            weights=self._number(operator.weight.name),
            bias=None if operator.bias is None else self._number(operator.bias.name),
            given=self._scaling(given),
            weight=self._scaling(weight),
            made=self._scaling(result),
            channels=operator.x.shape[1],
            filters=filters,
            windows=operator.windows,
            depthwise=depthwise,
            by_inputs=of.by_inputs,
            scales_apart=math.prod(weight.scale.shape) > 1,
            zeros_apart=math.prod(weight.zero.shape) > 1,
        )

    def _behind(self, task: QuantisedTask) -> QuantisedTask:
        """Return ``task`` of one layer with all that follows, as long as there is a kernel."""
        for step in (self._pool, self._table, self._layers, self._layers, self._sum):
            start = self._at
            try:
                further = step(task)
            except UnsuitedError:
                self._at = start
                continue
            if task.joined is not None and further.depthwise >= 0:
                raise UnsuitedError("layers around a depthwise one are a task, and read one tensor")
            if further.fault():
                self._at = start
            else:
                task = further
        return task

    def _layers(self, task: QuantisedTask) -> QuantisedTask:
        """Take a layer around a depthwise one."""
        return replace(task, layers=(*task.layers, self._further()))

    def _pool(self, task: QuantisedTask) -> QuantisedTask:
        """Take the maxima of windows."""
        pool = self._next(Pooling)
        if pool.operator.kind != "largest" or not pool.last:
            raise UnsuitedError("channels come first, or means")
        return replace(task, pool=pool.operator.windows)

    def _table(self, task: QuantisedTask) -> QuantisedTask:
        """Take the two nodes that look up bytes in a table (optimising/byte_tables.py)."""
        cast, gather = self._follow(), self._follow()
        if cast.operator != Op.Cast or gather.operator != Op.Gather:
            raise UnsuitedError("no table")
        values = self._graph.constants.get(gather.inputs[0])
        if values is None or values.dtype.name not in BYTE_TYPES or values.shape != (BYTES,):
            raise UnsuitedError("no table of bytes")
        table = ByteTable(values=self._number(gather.inputs[0]), signed=values.dtype.name == "int8")
        return replace(task, table=table)

    def _sum(self, task: QuantisedTask) -> QuantisedTask:
        """Take the sum of what was made and another value of its shape."""
        name, of = self._made, self._next(Combine)
        first, second = of.operator.operands
        if of.operator.kind != "add" or first.name == second.name or first.shape != second.shape:
            raise UnsuitedError("no sum, or of another shape")
        if not _is_image(of):
            raise UnsuitedError("of a product")
        over = name == second.name
        other = first.name if over else second.name
        if other not in self._graph.values:
            raise UnsuitedError("of a constant")
        one, two, three = map(self._scaling, of.scales)
        number = self._number(other)
        addition = Sum(other=number, over=over, first=one, second=two, made=three)
        return replace(task, addition=addition)

    def _average(self, of: OnBytes[Reduction]) -> QuantisedAverage:
        """Return the average of each channel."""
        x = of.operator.x
        if not of.last or not _is_image(of) or x.shape[0] != 1:
            raise UnsuitedError("channels come first, or several images")
        given, made = of.scales
        return QuantisedAverage(
            source=self._number(x.name),
            given=self._scaling(given),
            made=self._scaling(made),
            channels=x.shape[1],
            pixels=math.prod(x.shape[2:]),
        )


def _is_image(of: OnBytes[Any]) -> bool:
    """Return whether it makes rows and columns, and not a matrix."""
    return len(of.y.shape) == _IMAGE


# Quantised layers that run as one piece: what is between them never lies in a plan.
#
# models/compiler/cutting/quantised_tasks.py decides which: every task of several nodes is a group.
# A device with kernels for these (pipeline/devices/integers) makes some channels of some rows at a time,
# with the same bits; ONNX Runtime runs their nodes one after the other.


def quantised_groups(graph: Graph, most_weights: float = math.inf) -> Fused:
    """Return the groups of ``graph``, whose nodes follow each other, by first node; no two share one.

    ``most_weights``: bytes that a convolution in a group has at most, since all of them are there at once;

    """
    tasks = _tasks(graph, most_weights)
    return {first: FusedNodes(first, item.end, _added(item)) for first, item in tasks.items()}


def _tasks(graph: Graph, most_weights: float = math.inf) -> dict[int, FoundTask]:
    """Return the tasks of several nodes by first node."""
    tasks: dict[int, FoundTask] = {}
    index = 0
    while index < len(graph.nodes):
        task = (
            _longest_task(graph, index, most_weights) if _has_scales(graph.nodes[index]) else None
        )
        if task is not None and task.end > index + 1:
            tasks[index] = task
            index = task.end
        else:
            index += 1
    return tasks


def _added(found: FoundTask) -> str | None:
    """Return what is added to the layer of a group that is no bottleneck; its sum may lie over it."""
    over = found.task.over
    return None if over is None else found.names[over]


def edges(graph: Graph, groups: Fused) -> set[int]:
    """Return the nodes before which a piece ends: around groups, and around kernels that are alone."""
    alone = (index for index, node in enumerate(graph.nodes) if _is_standalone(graph, node))
    inside = {index for group in groups.values() for index in range(group.first, group.end)}
    lone = {edge for index in alone if index not in inside for edge in (index, index + 1)}
    return lone | {edge for group in groups.values() for edge in (group.first, group.end)}


def _has_scales(node: Node) -> bool:
    return traits_of(node.operator).elements == "quantised"


def _is_standalone(graph: Graph, node: Node) -> bool:
    """Return whether ``node`` is better as a piece of its own: kernels compute it alone."""
    operator = graph.operator(node) if _has_scales(node) else None
    return isinstance(operator, OnBytes) and isinstance(operator.operator, Convolution | Reduction)


def before_tables(graph: Graph) -> frozenset[str]:
    """Return the values behind which a table may stand: of dense layers, or their maxima."""
    bottlenecks = {
        index
        for first, group in _tasks(graph).items()
        if isinstance(group.task, QuantisedTask) and group.task.depthwise >= 0
        for index in range(first, group.end)
    }
    names = set()
    for index, node in enumerate(graph.nodes):
        is_layer = _has_scales(node) and traits_of(node.operator).layer
        read = _longest_task(graph, index) if is_layer and index not in bottlenecks else None
        if read is None or not isinstance(read.task, QuantisedTask):
            continue
        if read.task.addition is None and read.task.depthwise < 0:
            names.add(graph.nodes[read.end - 1].output)
    return frozenset(names)


def grouped(graph: Graph, groups: Fused) -> frozenset[str]:
    """Return what the nodes of ``groups`` make."""
    return frozenset(
        name
        for group in groups.values()
        for node in graph.nodes[group.first : group.end]
        for name in node.made
    )


def kept_whole(
    groups: Fused, elided: Collection[int], placed: Collection[str], graph: Graph
) -> Fused:
    """Return those of ``groups`` with a kernel for each node and nothing inside that lies elsewhere."""
    return {
        first: group for first, group in groups.items() if _is_whole(group, elided, placed, graph)
    }


def _is_whole(
    group: FusedNodes, elided: Collection[int], placed: Collection[str], graph: Graph
) -> bool:
    nodes = range(group.first, group.end)
    inner = (name for index in nodes[:-1] for name in graph.nodes[index].made)
    return not any(index in elided for index in nodes) and not any(name in placed for name in inner)
