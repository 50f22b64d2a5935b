"""An order of nodes in which fewer bytes have to be kept at once.

The order in a file is arbitrary. A route that waits for the neck of a detector should
wait as the smaller tensor that the neck makes of it. A head, or the projection of a shortcut, which is
larger than its input, should run shortly before it is read. So nodes move, each with some of the
nodes that read it alone, up to where they can run first or down to where they must, while that helps.
Results are the same: every node reads the same values.

What helps is less of the sum, over all nodes, of the fourth power of the bytes that live while each runs:
the peak, mostly, and what waits beside everything else, since peaks of large maps become small on rows
(docs/explanation/rows.md).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from models.compiler.analysis.alias import written_over
from models.graphs.graph import Graph
from models.graphs.order import stable_order
from models.network.catalogue import traits_of
from models.network.names import Op
from models.network.node import Node
from models.network.operators.convolution import ADDEND

_POWER = 4
# So many nodes move together at most.
_GROUP = 48
# So many nodes are looked at, again and again, at most: some seconds. YOLOv4 needs a tenth.
_VISITS = 1_000_000
# What keeps less by less than a thousandth stays where its maker put it.
_WORTH = 0.999


@dataclass(frozen=True)
class _Node:
    """``reads`` and ``makes``: values. ``over``: those that count as part of its result."""

    reads: tuple[str, ...]
    makes: tuple[str, ...]
    over: frozenset[str]


def with_less_kept(graph: Graph) -> Graph:
    """Return ``graph``, which has no regions yet, with nodes moved where that keeps less."""
    order = _Order(graph)
    while sum(_moved(order, first) for first in range(len(graph.nodes))):
        pass
    return graph.reordered(order.nodes)


def _takes_over(node: Node) -> bool:
    """Return whether all that ``node`` reads counts as part of its result once nothing else reads it.

    A reshape and a concatenation need no kernel where their parts lie in their result.

    Of layers with a sum or scales that holds on rows only; but random networks with shortcuts take up to a
    fifth less so.
    """
    operator = node.operator
    return operator == Op.Concat or traits_of(operator).reshapes or len(node.inputs) > ADDEND


def _added_one_by_one(graph: Graph) -> Iterator[tuple[int, list[int]]]:
    """Yield convolutions that add to tokens, and the nodes that only the next one of a sum needs.

    Groups of hidden channels (optimising/hidden_groups.py) are to be made one after the other: all of them
    need the same tokens, which could end earlier if they were made together.
    """
    if not any(traits_of(node.operator).access == "attention" for node in graph.nodes):
        return
    for index, node in enumerate(graph.nodes):
        before = graph.makers.get(node.inputs[ADDEND]) if _adds(node) else None
        if before is None or not _adds(graph.nodes[before]):
            continue
        needed = _needed_by(graph, index, node.inputs[ADDEND])
        if needed:
            yield before, needed


def _adds(node: Node) -> bool:
    """Return whether ``node`` is a convolution that adds what it makes to another value."""
    return traits_of(node.operator).computes(Op.Conv) and len(node.inputs) > ADDEND


def _needed_by(graph: Graph, index: int, total: str) -> list[int]:
    """Return the nodes in front of node ``index`` that it alone needs for what it convolves.

    None if these are made of ``total``, what it adds to.
    """
    needed, left = {index}, [graph.nodes[index].inputs[0]]
    while left:
        name = left.pop()
        if name == total:
            return []
        producer = graph.makers.get(name, index)
        readers = graph.readers.get(name, ())
        if producer in needed or name in graph.outputs or not needed.issuperset(readers):
            continue
        needed.add(producer)
        left += graph.nodes[producer].reads
    return sorted(needed - {index})


def _moved(order: "_Order", first: int) -> bool:
    """Move the node ``first``, alone or with others, to where that keeps less; return whether it does."""
    return any(
        order.take(start, nodes)
        for group in order.groups(first)
        for start, nodes in order.moves(group)
    )


def _power(n_bytes: int) -> float:
    return float(n_bytes) ** _POWER


class _Order:
    """``nodes``: in the order that they have now, by number. ``visits``: how many were looked at so far."""

    def __init__(self, graph: Graph) -> None:
        # What regions read of an input stays with the request; values without a place have an order, too.
        self._bytes = dict.fromkeys(graph.dynamic, 0) | {
            name: 0 if name in graph.inputs else array.n_bytes
            for name, array in graph.values.items()
        }
        self._all = [
            _Node(
                tuple(dict.fromkeys(name for name in node.reads if name in self._bytes)),
                tuple(name for name in node.made if name in self._bytes),
                frozenset(node.reads if _takes_over(node) else written_over(graph, node)),
            )
            for node in graph.nodes
        ]
        self._readers: dict[str, Sequence[int]] = {
            name: graph.readers.get(name, ()) for name in self._bytes
        }
        self._maker = dict(graph.makers)
        for before, nodes in _added_one_by_one(graph):
            self._follow(before, nodes)
        self._stays = set(graph.outputs)
        self.visits = 0
        self.nodes = self._in_order()
        self._place = [0] * len(self.nodes)
        for position, node in enumerate(self.nodes):
            self._place[node] = position
        # In front of each place, and behind the last; and what a node there adds to the sum.
        self._live = [0]
        found = [*self._bytes_of(0, self.nodes)]
        self._live += [after for _, after in found]
        self._adds = [_power(during) for during, _ in found]

    def _follow(self, before: int, nodes: Sequence[int]) -> None:
        """Have ``nodes`` stay behind the node ``before``, as if they read a value of no bytes."""
        value = f"\0{before}:{nodes[0]}"
        self._bytes[value], self._maker[value], self._readers[value] = 0, before, tuple(nodes)
        producer = self._all[before]
        self._all[before] = replace(producer, makes=(*producer.makes, value))
        for node in nodes:
            reader = self._all[node]
            self._all[node] = replace(reader, reads=(*reader.reads, value))

    def _in_order(self) -> list[int]:
        """Return the nodes in the order of the graph, but each behind all that it follows."""
        needs = (
            {self._maker[value] for value in node.reads if value in self._maker}
            for node in self._all
        )
        return stable_order(dict(enumerate(needs)))

    def groups(self, first: int) -> Iterator[list[int]]:
        """Yield ``first``, then one more each time of the nodes that need only it and what is before it."""
        group, inside = [first], {first}
        start = self._place[first]
        yield list(group)
        for node in self.nodes[start + 1 :]:
            self.visits += 1
            if self.visits > _VISITS:
                return
            makers = [self._maker.get(value) for value in self._all[node].reads]
            if not inside.isdisjoint(makers):
                if any(
                    m is not None and m not in inside and self._place[m] > start for m in makers
                ):
                    return
                group.append(node)
                inside.add(node)
                yield list(group)
                if len(group) == _GROUP:
                    return

    def moves(self, group: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield the places from which other nodes may stand, and these: the group first, or last."""
        inside = set(group)
        before = [
            self._place[self._maker[value]]
            for node in group
            for value in self._all[node].reads
            if value in self._maker and self._maker[value] not in inside
        ]
        after = [
            self._place[reader]
            for node in group
            for value in self._all[node].makes
            for reader in self._readers[value]
            if reader not in inside
        ]
        first, last = self._place[group[0]], self._place[group[-1]]
        up, down = max(before, default=-1) + 1, min(after, default=len(self.nodes))
        if up < first:
            yield up, [*group, *(n for n in self.nodes[up : last + 1] if n not in inside)]
        if down > last + 1:
            yield first, [*(n for n in self.nodes[first:down] if n not in inside), *group]

    def take(self, start: int, nodes: Sequence[int]) -> bool:
        """Let ``nodes`` stand from the place ``start`` on if that keeps less."""
        self.visits += len(nodes)
        places = slice(start, start + len(nodes))
        found = [*self._bytes_of(start, nodes)]
        adds = [_power(during) for during, _ in found]
        if sum(adds) >= _WORTH * sum(self._adds[places]):
            return False
        self.nodes[places] = nodes
        self._adds[places] = adds
        self._live[start + 1 : places.stop + 1] = [after for _, after in found]
        for place, node in enumerate(nodes, start):
            self._place[node] = place
        return True

    def _bytes_of(self, start: int, nodes: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the bytes that live while each of ``nodes`` runs, from place ``start`` on, and after it."""
        live = self._live[start]
        last = {value: node for node in nodes for value in self._touched(node)}
        end = start + len(nodes)
        inside = set(nodes)
        dying: dict[int, list[str]] = {}
        for value, node in last.items():
            outside = (n for n in self._readers[value] if n not in inside)
            if value not in self._stays and all(self._place[n] < end for n in outside):
                dying.setdefault(node, []).append(value)
        for node in nodes:
            live += sum(self._bytes[value] for value in self._all[node].makes)
            ended = dying.get(node, ())
            during = live - self._shared(node, ended)
            live -= sum(self._bytes[value] for value in ended)
            yield during, live

    def _touched(self, node: int) -> tuple[str, ...]:
        return (*self._all[node].reads, *self._all[node].makes)

    def _shared(self, node: int, ended: Sequence[str]) -> int:
        """Return how many bytes of its results lie where what it reads lay."""
        results = self._all[node]
        freed = sum(self._bytes[value] for value in ended if value in results.over)
        return min(freed, sum(self._bytes[value] for value in results.makes))
