"""Quantised layers that run as one piece: what is between them never lies in a plan.

An inverted bottleneck's layers around its depthwise one, and the sum behind them (seed 004, Fig. 5); a
layer with what is made of its bytes at once, the maxima of windows, what they become in a table, a sum; in
front of layers what quantises an image, cuts a rectangle out of it and puts channels last, or puts several
tensors together. A device with kernels for these (pipeline/devices/integers) makes some channels of some
rows at a time, with the same bits; ONNX Runtime runs their nodes one after the other.
"""

from collections.abc import Collection, Mapping
from typing import Any

from models.compiler.analysis.fused import Fused, FusedNodes
from models.compiler.analysis.graph import Graph
from models.compiler.optimising.tables import BYTES
from models.graphs.nodes import attributes, made

_IMAGE = 4
_CHANNELS_LAST = [0, 2, 3, 1]
_FLOAT = "float32"
# The most tensors that a kernel puts together.
_MOST_JOINED = 8
#: Operators that had better be pieces of their own: kernels know each of them alone.
ALONE = frozenset(("QLinearConv", "QGemm", "QLinearGlobalAveragePool"))


def quantised_groups(graph: Graph, most_weights: int | None = None) -> Fused:
    """Return the groups of ``graph``, whose nodes follow each other, by first node; no two share one.

    ``most_weights``: bytes that a layer in a group has at most, since all of them are there at once; None:
    any.
    """
    walk = _Walk(graph, most_weights)
    found: dict[int, FusedNodes] = {}
    index = 0
    while index < len(graph.nodes):
        end = walk.end(index)
        if end is not None:
            found[index] = FusedNodes(index, end, walk.added(index, end))
        index = end or index + 1
    return found


def edges(graph: Graph, groups: Fused) -> set[int]:
    """Return the nodes before which a piece ends: around groups, and around kernels that are alone."""
    alone = (index for index, node in enumerate(graph.nodes) if node.op_type in ALONE)
    inside = {index for group in groups.values() for index in range(group.first, group.end)}
    lone = {edge for index in alone if index not in inside for edge in (index, index + 1)}
    return lone | {edge for group in groups.values() for edge in (group.first, group.end)}


def before_tables(graph: Graph) -> frozenset[str]:
    """Return the values behind which a table may stand: of dense layers, or their maxima."""
    walk = _Walk(graph, None)
    inside = {
        index: group
        for group in quantised_groups(graph).values()
        for index in range(group.first, group.end)
    }
    found = set()
    for index in range(len(graph.nodes)):
        end, group = walk.dense(index), inside.get(index)
        if end is None or graph.nodes[end - 1].op_type == "QLinearAdd":
            continue
        if group is None or not walk.has_depthwise(group.first, group.end):
            found.add(graph.nodes[end - 1].output[0])
    return frozenset(found)


def grouped(graph: Graph, groups: Fused) -> frozenset[str]:
    """Return what the nodes of ``groups`` make."""
    return frozenset(
        name
        for group in groups.values()
        for node in graph.nodes[group.first : group.end]
        for name in made(node)
    )


class _Walk:
    """Goes over nodes that follow each other, each the only reader of the one before."""

    def __init__(self, graph: Graph, most_weights: int | None) -> None:
        self._graph = graph
        self._most = most_weights
        self._readers = graph.readers

    def end(self, index: int) -> int | None:
        """Return where the group that begins with node ``index`` ends; None: there is none."""
        first_layer = self._after_image(index)
        if first_layer is not None:
            end = self._layers(first_layer)
            return end if end is not None else self._alone(first_layer)
        return self._joined(index) or self._layers(index)

    def added(self, index: int, end: int) -> str | None:
        """Return what is added to the layer of a group that is no bottleneck; its sum may lie over it."""
        *nodes, last = self._graph.nodes[index:end]
        if last.op_type != "QLinearAdd" or self.has_depthwise(index, end):
            return None
        own = made(nodes[-1])[0]
        return str(last.input[0] if last.input[3] == own else last.input[3])

    def has_depthwise(self, index: int, end: int) -> bool:
        return any(map(self._is_depthwise, range(index, end)))

    def _alone(self, index: int) -> int | None:
        return index + 1 if self._is_layer(index) else None

    def _after_image(self, index: int) -> int | None:
        """Return the node behind those that take a rectangle of an image; None: these do not."""
        nodes, node = self._graph.nodes, self._graph.nodes[index]
        source = node.input[0] if node.input else ""
        if node.op_type != "QuantizeLinear" or source not in self._graph.inputs:
            return None
        image = self._graph.values.get(source)
        if image is None or image.dtype != _FLOAT or len(image.shape) != _IMAGE:
            return None
        while self._leads(index):
            index += 1
            if nodes[index].op_type == "Transpose":
                turned = list(attributes(nodes[index]).get("perm", ()))
                return index + 1 if turned == _CHANNELS_LAST and self._leads(index) else None
            if nodes[index].op_type != "Slice":
                return None
        return None

    def _layers(self, index: int) -> int | None:
        """Return where the layers end that begin at ``index``: several, or one with more behind it."""
        end = self.dense(index)
        if end is not None and end > index + 1:
            return end
        if not self._is_layer(index):
            return None
        count = 1
        if not self._is_depthwise(index):
            index += 1
            if not (self._follows(index) and self._is_depthwise(index)):
                return None
            count += 1
        if self._follows(index + 1) and self._is_pointwise(index + 1):
            index += 1
            count += 1
            if self._follows(index + 1) and self._adds(index + 1):
                return index + 2
        return index + 1 if count > 1 else None

    def dense(self, index: int) -> int | None:
        """Return the end of a layer that reads all channels and what is behind; None: it is none.

        Maxima, a table, and without maxima a sum.
        """
        if not self._is_dense(index):
            return None
        end = index + 1
        pools = self._follows(end) and self._pools(index, end)
        end += pools
        end += 2 if self._follows(end) and self._looks_up(end) else 0
        adds = not pools and self._is_layer(index) and self._follows(end) and self._adds(end)
        return end + adds

    def _joined(self, index: int) -> int | None:
        """Return where the layer ends that alone reads what a node puts together; None: there is none."""
        if not self._joins(index):
            return None
        end = self.dense(index + 1)
        return end if self._layers(index + 1) in (None, end) else None

    def _joins(self, index: int) -> bool:
        """Return whether a node puts bytes together along their last axis, for the next one alone."""
        node = self._graph.nodes[index]
        return (
            node.op_type == "QLinearConcat"
            and self._graph.region(index) is None
            and self._given(index)["axis"] in (-1, _IMAGE - 1)
            and len(node.input) <= _MOST_JOINED * 3 + 2
            and all(name in self._graph.values for name in node.input[2::3])
            and self._leads(index)
            and self._is_layer(index + 1)
        )

    def _leads(self, index: int) -> bool:
        """Return whether node ``index`` makes one value, which the next node alone reads."""
        names = made(self._graph.nodes[index])
        return (
            index + 1 < len(self._graph.nodes)
            and len(names) == 1
            and names[0] not in self._graph.outputs
            and self._readers.get(names[0]) == [index + 1]
        )

    def _follows(self, index: int) -> bool:
        """Return whether node ``index`` alone reads what the one before it makes."""
        return index < len(self._graph.nodes) and self._leads(index - 1)

    def _is_layer(self, index: int) -> bool:
        """Return whether a node is a convolution of bytes with channels last and constant weights."""
        if index >= len(self._graph.nodes) or self._graph.region(index) is not None:
            return False
        node = self._graph.nodes[index]
        weights = node.input[3] if len(node.input) > 3 else ""
        return (
            node.op_type == "QLinearConv"
            and bool(self._given(index).get("channels_last", 0))
            and node.input[0] in self._graph.values
            and all(name in self._graph.constants for name in node.input[1:] if name)
            and len(self._graph.constants[weights].shape) == _IMAGE
            and (self._most is None or self._graph.constants[weights].nbytes <= self._most)
        )

    def _is_dense(self, index: int) -> bool:
        if self._is_layer(index):
            return bool(self._given(index).get("group", 1) == 1)
        node = self._graph.nodes[index]
        return (
            node.op_type == "QGemm"
            and self._graph.region(index) is None
            and node.input[0] in self._graph.values
            and all(name in self._graph.constants for name in node.input[1:] if name)
        )

    def _given(self, index: int) -> Mapping[str, Any]:
        return attributes(self._graph.nodes[index])

    def _is_depthwise(self, index: int) -> bool:
        if not self._is_layer(index):
            return False
        node = self._graph.nodes[index]
        filters, depth = self._graph.constants[node.input[3]].shape[:2]
        return bool(self._given(index).get("group", 1) == filters > 1 == depth)

    def _is_pointwise(self, index: int) -> bool:
        if not self._is_layer(index) or self._given(index).get("group", 1) != 1:
            return False
        node = self._graph.nodes[index]
        before, after = (self._graph.array(name).shape for name in (node.input[0], node.output[0]))
        one = self._graph.constants[node.input[3]].shape[2:] == (1, 1)
        return one and before[:3] == after[:3]

    def _pools(self, index: int, pool: int) -> bool:
        """Return whether node ``pool`` makes the largest bytes of windows of what layer ``index`` makes."""
        node, given = self._graph.nodes[pool], self._given(pool)
        if node.op_type != "NhwcMaxPool":
            return False
        if given.get("auto_pad", "NOTSET") != "NOTSET" or set(given.get("dilations", (1,))) != {1}:
            return False
        pads = given.get("pads", (0, 0, 0, 0))
        sizes = zip(
            *(self._graph.array(name).shape[1:3] for name in (node.input[0], node.output[0])),
            given["kernel_shape"],
            given.get("strides", (1, 1)),
            map(sum, zip(pads[:2], pads[2:], strict=True)),
            strict=True,
        )
        # No window, as ceil_mode may have them, reaches beyond the padding.
        return all(
            (made - 1) * stride + kernel <= size + padding
            for size, made, kernel, stride, padding in sizes
        )

    def _looks_up(self, index: int) -> bool:
        """Return whether a node and the next one look up bytes in a table (optimising/tables.py)."""
        nodes = self._graph.nodes
        if nodes[index].op_type != "Cast" or not self._leads(index):
            return False
        gather = nodes[index + 1]
        table = self._graph.constants.get(gather.input[0])
        numbers = self._graph.values.get(nodes[index].output[0])
        return (
            (gather.op_type, gather.input[1]) == ("Gather", nodes[index].output[0])
            and (table is not None and table.shape == (BYTES,) and table.itemsize == 1)
            and (numbers is not None and numbers.dtype == "int32")
        )

    def _adds(self, index: int) -> bool:
        """Return whether a node adds what the one before makes to another value of its shape."""
        node = self._graph.nodes[index]
        if node.op_type != "QLinearAdd":
            return False
        names = (node.input[0], node.input[3])
        return (
            names[0] != names[1]
            and all(name in self._graph.values for name in names)
            and len({self._graph.values[name].shape for name in names}) == 1
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
    inner = (name for index in nodes[:-1] for name in made(graph.nodes[index]))
    return not any(index in elided for index in nodes) and not any(name in placed for name in inner)
