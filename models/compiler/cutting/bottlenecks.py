"""Bottlenecks: parts of a network that can run some of their inner channels at a time (seed 004, Fig. 5).

A point-wise convolution is a sum over the channels that it reads. So where no other node reads these
channels, and each was made for itself, by a depthwise convolution, an activation, or one output of the
convolution before, a group of them can be made, added to the result, and forgotten. An inverted
bottleneck's expansion, its largest tensor, then never exists. The factors of a squeeze-excite gate depend
on all channels: groups run up to their means first, and again when the factors are there.


Each operator has graphs of its own (``GroupOperator`` of models/packs), which take any number of rows and,
but for depthwise convolutions, whose node gives its number of channels, any number of channels:
bottlenecks that are alike share them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from models.compiler.cutting.piece_models import port, serialise_nodes
from models.compiler.cutting.row_nodes import RowGraph, RowNode, padded
from models.graphs.graph import Graph
from models.network.catalogue import traits_of
from models.network.names import NCHWC, Op
from models.network.node import NamedTensor, Node
from models.network.operators.reading import Convolution
from models.network.windows import SAME, Window

Kind = Literal["each", "mean", "once", "sum"]
Axis = Literal["channels", "factors", "inputs"]

# No plan has an arena below such a part of the network's largest tensor: inner tensors that are smaller
# never count.
_LEAST_PART = 1 / 16
_MOST_SIZES = 3
_IMAGE_DIMENSIONS = 4
# Which input of a multiplication by factors these are.
_FACTORS = 1


@dataclass(frozen=True)
class GroupTensor:
    """A value or constant that an operator reads, and along what a group has its part of it."""

    name: str
    axis: Axis | None = None
    window: Window = SAME


@dataclass(frozen=True)
class GroupNodes:
    """``nodes`` as one operator: ``inputs`` in the order of its graphs; it makes ``output``."""

    kind: Kind
    nodes: tuple[int, ...]
    inputs: tuple[GroupTensor, ...]
    output: str


@dataclass(frozen=True)
class FoundBottleneck:
    """The nodes [first_node, end_node), of ``channels`` inner channels, as ``operators`` in their order."""

    first_node: int
    end_node: int
    channels: int
    sizes: tuple[int, ...]
    operators: tuple[GroupNodes, ...]


def find_bottlenecks(
    graph: Graph, rows: RowGraph, elided: frozenset[int], block: int
) -> Iterator[FoundBottleneck]:
    """Yield the bottlenecks of ``graph`` that save memory; they may overlap.

    ``rows``: all that can run on rows; ``elided``: nodes without a kernel; ``block``: channels in a block.
    """
    if block == 1:
        return
    readers = graph.readers
    on_rows = {row.index: row for row in rows.nodes}
    sources = frozenset(name for row in rows.nodes for name, _ in row.inputs)
    least = _LEAST_PART * max((value.n_bytes for value in graph.values.values()), default=0)
    for index, node in enumerate(graph.nodes):
        last = _convolution(graph, index) if index in on_rows else None
        if last is not None and last.is_pointwise and last.groups == 1:
            walk = _Walk(graph, on_rows, sources, readers, elided, index)
            bottleneck = walk.found(_sizes(graph.array(node.inputs[0]).shape[1], block))
            if bottleneck is not None and _is_worth_it(graph, bottleneck, least):
                yield bottleneck


def _sizes(channels: int, block: int) -> tuple[int, ...]:
    """Return the sizes of groups: one block, two, four, each less than all channels."""
    return tuple(
        size for size in (block << times for times in range(_MOST_SIZES)) if size < channels
    )


def _is_worth_it(graph: Graph, found: FoundBottleneck, least: float) -> bool:
    """Return whether an inner tensor has ``least`` bytes, and more than the result."""
    inner = max(
        (graph.array(item.output).n_bytes for item in found.operators if item.kind == "each"),
        default=0,
    )
    result = graph.array(found.operators[-1].output).n_bytes
    return inner >= least and inner > result


def _convolution(graph: Graph, index: int) -> Convolution | None:
    """Return the blocked convolution of constant weights that a node is; None: it is none."""
    node = graph.nodes[index]
    operator = graph.operator(node) if node.domain == NCHWC else None
    if not isinstance(operator, Convolution) or operator.x.name not in graph.values:
        return None
    has_bias = operator.bias is None or operator.bias.name in graph.constants
    return operator if has_bias and graph.is_weight(operator.weight.name) else None


@dataclass
class _Walk:
    """Goes back from the node ``last`` as long as each node makes channels that only this part reads.

    ``sources``: what operators on rows read. ``inner``: what is still to be made for each group;
    ``gate``: what factors are still to be made of. ``ungrouped``: what a group reads all channels of.
    """

    graph: Graph
    on_rows: Mapping[int, RowNode]
    sources: frozenset[str]
    readers: Mapping[str, list[int]]
    elided: frozenset[int]
    last: int
    inner: set[str] = field(default_factory=set)
    gate: set[str] = field(default_factory=set)
    ungrouped: set[str] = field(default_factory=set)
    members: set[int] = field(default_factory=set)
    factors: list[int] = field(default_factory=list)
    pooled: list[str] = field(default_factory=list)
    scale: int | None = None

    def found(self, sizes: tuple[int, ...]) -> FoundBottleneck | None:
        """Return the bottleneck that ends with the last node; None: there is none."""
        node = self.graph.nodes[self.last]
        self.members.add(self.last)
        self.inner.add(node.inputs[0])
        operators = [self._sum()]
        index = self.last - 1
        while index >= 0 and (self.inner or self.gate):
            item = self._looked_at(index)
            if index not in self.members:
                break
            operators += [item] if item is not None else []
            index -= 1
        if self.gate or not sizes or not any(item.kind == "each" for item in operators):
            return None
        channels = self.graph.array(node.inputs[0]).shape[1]
        sources = self._sources(operators)
        # Means run over all groups first, so these have to compute what they are of.
        means = {item.inputs[0].name for item in operators if item.kind == "mean"}
        if not all(map(self._has_rows, sources)) or not means.isdisjoint(sources):
            return None
        return FoundBottleneck(
            index + 1, self.last + 1, channels, sizes, tuple(self._with_gate(operators[::-1]))
        )

    def _sum(self) -> GroupNodes:
        node = self.graph.nodes[self.last]
        source, weights, *others = node.inputs
        inputs = [GroupTensor(source, "channels"), GroupTensor(weights, "inputs")]
        # A bias of a few numbers is a part of the graph.
        held = (name for name in others if name in self.graph.values or self.graph.is_weight(name))
        inputs += [GroupTensor(name) for name in held]
        return GroupNodes("sum", (self.last,), tuple(inputs), node.output)

    def _looked_at(self, index: int) -> GroupNodes | None:
        """Make node ``index`` a member, if it can be one; return what it is for each group."""
        node = self.graph.nodes[index]
        name = node.made[0]
        if len(node.made) != 1 or self.graph.region(index) is not None or not self._is_own(name):
            return None
        if name in self.gate:
            return self._of_gate(index, name)
        if name not in self.inner or name in self.ungrouped or index in self.elided:
            return None
        item = self._each(index, name)
        if item is not None:
            self.members.add(index)
            self.inner.discard(name)
        return item

    def _is_own(self, name: str) -> bool:
        """Return whether only nodes that are parts already read ``name``."""
        return name not in self.graph.outputs and self.members.issuperset(
            self.readers.get(name, ())
        )

    def _of_gate(self, index: int, name: str) -> GroupNodes | None:
        """Take in a node that factors are made of; it is an operator if it makes the means."""
        node = self.graph.nodes[index]
        self.members.add(index)
        self.gate.discard(name)
        if node.operator == Op.BlockedGlobalAveragePool:
            self.inner.add(node.inputs[0])
            self.pooled.append(name)
            return GroupNodes("mean", (index,), (GroupTensor(node.inputs[0], "channels"),), name)
        self.gate.update(each for each in node.reads if each in self.graph.values)
        # What reshapes them last needs no kernel: factors lie as they did.
        is_kernel = self.factors or not traits_of(node.operator).reshapes
        if index not in self.elided and is_kernel:
            self.factors.insert(0, index)
        return None

    def _each(self, index: int, name: str) -> GroupNodes | None:
        """Return a node as it makes some channels, and note what it makes them of."""
        node, row = self.graph.nodes[index], self.on_rows.get(index)
        convolution = None if row is None else _convolution(self.graph, index)
        if row is not None and convolution is not None and convolution.addend is None:
            if convolution.groups == 1:
                self.ungrouped.add(node.inputs[0])
                return self._conv(index, row, None)
            if convolution.is_depthwise and convolution.filters == convolution.groups:
                self.inner.add(node.inputs[0])
                return self._conv(index, row, "channels")
        if self.scale is None and self._is_scale(index):
            self.scale = index
            self.inner.add(node.inputs[0])
            self.gate.add(node.inputs[1])
            inputs = (
                GroupTensor(node.inputs[0], "channels"),
                GroupTensor(node.inputs[1], "factors"),
            )
            return GroupNodes("each", (index,), inputs, name)
        if row is None or traits_of(node.operator).function is None:
            return None
        if row.weights or len(self.graph.array(name).shape) != _IMAGE_DIMENSIONS:
            return None  # a chain that does not tell channels apart
        tensors = [source for source, _ in row.inputs]
        self.inner.update(tensors)
        sources = tuple(GroupTensor(source, "channels") for source in tensors)
        return GroupNodes("each", (index,), sources, name)

    def _conv(self, index: int, row: RowNode, axis: Axis | None) -> GroupNodes:
        node = self.graph.nodes[index]
        inputs = [GroupTensor(node.inputs[0], axis, row.inputs[0][1])]
        inputs += [
            GroupTensor(name, "channels") for name in node.inputs[1:] if self.graph.is_weight(name)
        ]
        return GroupNodes("each", (index,), tuple(inputs), node.output)

    def _is_scale(self, index: int) -> bool:
        """Return whether a node multiplies each channel by a factor: weights that the network makes."""
        node = self.graph.nodes[index]
        if node.domain != NCHWC or not all(name in self.graph.values for name in node.inputs):
            return False
        operator = self.graph.operator(node)
        if not isinstance(operator, Convolution) or len(node.inputs) > _FACTORS + 1:
            return False
        return (
            operator.is_depthwise and operator.is_pointwise and operator.y.shape == operator.x.shape
        )

    def _sources(self, operators: Sequence[GroupNodes]) -> set[str]:
        """Return the values that are there before the first of ``operators``."""
        computed = {item.output for item in operators}
        read = {tensor.name for item in operators for tensor in item.inputs}
        read -= computed | ({self.graph.nodes[self.scale].inputs[1]} if self.scale else set())
        return {name for name in read if name in self.graph.values}

    def _has_rows(self, name: str) -> bool:
        shape = self.graph.array(name).shape
        return len(shape) == 4 and name in self.sources

    def _with_gate(self, operators: Sequence[GroupNodes]) -> Iterator[GroupNodes]:
        """Yield ``operators`` with that of the factors, which runs before they are needed."""
        for item in operators:
            if item.nodes == (self.scale,):
                yield self._gate(item.inputs[1].name)
            yield item

    def _gate(self, name: str) -> GroupNodes:
        weights = dict.fromkeys(
            read
            for index in self.factors
            for read in self.graph.nodes[index].reads
            if self.graph.is_weight(read)
        )
        inputs = tuple(GroupTensor(each) for each in (*self.pooled, *weights))
        return GroupNodes("once", tuple(self.factors), inputs, name)


def group_graphs(
    graph: Graph, found: FoundBottleneck, elided: frozenset[int]
) -> Iterator[list[bytes]]:
    """Yield, for each operator of a bottleneck, its graphs in their order."""
    for item in found.operators:
        nodes = [graph.nodes[index] for index in item.nodes if index not in elided]
        if item.kind == "each":
            yield _of_sizes(graph, item, nodes[0], found.sizes)
        elif item.kind == "sum":
            yield list(_sums(graph, item, nodes[0]))
        else:
            yield [_serialised(graph, item, nodes)]


def _of_sizes(graph: Graph, item: GroupNodes, node: Node, sizes: Sequence[int]) -> list[bytes]:
    return [
        _serialised(graph, item, [_grouped(edge, size)])
        for size in sizes
        for edge in _edges(graph, node)
    ]


def _grouped(node: Node, size: int) -> Node:
    """Return a convolution of one channel each with ``size`` of them; others as they are."""
    return node if node.attributes.get("group", 1) == 1 else node.with_attributes(group=size)


def _edges(graph: Graph, node: Node) -> Iterator[Node]:
    """Yield ``node`` with all its padding, that above only, none, that below only; beside rows it stays."""
    operator = graph.operator(node)
    windows = operator.windows if isinstance(operator, Convolution) else None
    if windows is None or not any((*windows.before, *windows.behind)):
        yield from [node] * 4
        return
    (top, left), (bottom, right) = windows.before, windows.behind
    for above, below in ((1, 1), (1, 0), (0, 0), (0, 1)):
        yield padded(node, [above * top, left, below * bottom, right])


def _sums(graph: Graph, item: GroupNodes, node: Node) -> Iterator[bytes]:
    """Yield the convolution as the first group has it, later ones, and the last one."""
    plain = node.with_attributes(activation=None, activation_params=None)
    yield _serialised(graph, item, [plain])
    result = port(graph, item.output)
    so_far = result.named("so far")
    inputs = [*_ports(graph, item)[:2], so_far]
    for each in (plain, node):
        more = each.replaced([*node.inputs[:2], "", so_far.name])
        yield serialise_nodes(graph, [more], inputs, [result])


def _serialised(graph: Graph, item: GroupNodes, nodes: Sequence[Node]) -> bytes:
    result = port(graph, nodes[-1].output)
    return serialise_nodes(graph, nodes, _ports(graph, item), [result])


def _ports(graph: Graph, item: GroupNodes) -> list[NamedTensor]:
    return [port(graph, tensor.name) for tensor in item.inputs]
