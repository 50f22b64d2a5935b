"""Which nodes are computed along with another one: a sum with a shortcut, an activation.

What is in between then never goes to memory. An activation may be written as several nodes (a SiLU as
Sigmoid and Mul); on its own such a group is one operator, too.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from models.network.activations import Activation
from models.network.catalogue import read_operator, traits_of
from models.network.catalogue.functions import activation_of
from models.network.node import KnownTensors, NamedTensor, Node, UnsuitedError
from models.network.operators.reading import (
    BatchNorm,
    Combine,
    Convolution,
    Map,
    MatrixProduct,
    Operator,
)
from models.network.patterns import activations_in

#: Records that have room for an activation of what is computed.
_WithActivation = BatchNorm | Combine | Convolution | MatrixProduct


@dataclass(frozen=True)
class Surroundings:
    """The graph around nodes; ``kept``: values that something outside of ``nodes`` reads.

    ``may_add``: whether a node may add a value, of the shape of its own, to what it computes.
    """

    nodes: Sequence[Node]
    kept: Collection[str]
    known: KnownTensors
    may_add: Callable[[int, str], bool]


@dataclass(frozen=True)
class Fusion:
    """What is computed at once: ``nodes`` (indices, the first node of all first) make ``output``.

    ``addend`` is added before the activation, or after it with ``adds_last``. ``x``: what the activation
    is of, where that is all there is.
    """

    nodes: tuple[int, ...]
    output: str
    activation: Activation | None = None
    addend: str | None = None
    adds_last: bool = False
    x: str | None = None

    def operator(self, first: Operator, value: Callable[[str], NamedTensor]) -> Operator:
        """Return what all of it computes; ``first``: the first node alone, ``value``: by name."""
        if self.x is not None and self.activation is not None:
            x = value(self.x)
            return Map(function=self.activation, x=x, y=x.named(self.output))
        assert isinstance(first, _WithActivation), first
        y, activation = first.y.named(self.output), self.activation or first.activation
        if self.addend is None:
            return replace(first, y=y, activation=activation)
        assert isinstance(first, Convolution), first  # no other one adds
        addend, last = value(self.addend), self.adds_last
        return replace(first, y=y, activation=activation, addend=addend, adds_last=last)


def fusions(around: Surroundings, heads: Iterable[int]) -> dict[int, Fusion]:
    """Return what is computed at once, by its first node; no node is in two of them.

    Nodes choose what is computed along with them in the order of ``heads``; only these take part. The
    others of a fusion can run right behind the first: all that they read is there before it.
    """
    search = _Search(around, list(heads))
    return {index: fusion for index in search.heads if (fusion := search.chosen(index))}


class _Search:
    """What nodes have chosen so far."""

    def __init__(self, around: Surroundings, heads: list[int]) -> None:
        self.heads = heads
        self._around = around
        self._nodes = around.nodes
        self._readers: dict[str, list[int]] = {}
        for index, node in enumerate(around.nodes):
            for name in dict.fromkeys(node.inputs):
                self._readers.setdefault(name, []).append(index)
        self._free = set(heads)
        self._groups = self._found_groups()

    def _found_groups(self) -> dict[int, Fusion]:
        """Return the activations of several nodes, by each of these."""
        own = sorted(self.heads)
        others = set(range(len(self._nodes))).difference(own)
        kept = {*self._around.kept, *(name for at in others for name in self._nodes[at].inputs)}
        groups: dict[int, Fusion] = {}
        number = self._around.known.number
        for group in activations_in([self._nodes[index] for index in own], kept, number):
            nodes = tuple(own[at] for at in group.nodes)
            output = self._nodes[nodes[-1]].output
            fusion = Fusion(nodes, output, group.activation, x=group.x)
            groups.update(dict.fromkeys(nodes, fusion))
        return groups

    def chosen(self, index: int) -> Fusion | None:
        """Return what is computed at once with node ``index``; None where that is the node alone."""
        if index not in self._free:
            return None
        fusion = self._groups.get(index) or self._behind(index)
        if fusion is None or fusion.nodes[0] != index:
            return None
        self._free.difference_update(fusion.nodes)
        return fusion

    def _behind(self, index: int) -> Fusion | None:
        """Return the fusion of a node and a sum and an activation behind it, in either order."""
        try:
            first = read_operator(self._nodes[index], self._around.known)
        except UnsuitedError:
            return None
        if not isinstance(first, _WithActivation):
            return None
        fusion = Fusion((index,), first.y.name)
        may_sum = isinstance(first, Convolution) and first.addend is None
        may_activate = first.activation is None
        while may_sum or may_activate:
            then = self._next_activation(fusion.output) if may_activate else None
            if then is not None:
                nodes, may_activate = (*fusion.nodes, *then.nodes), False
                fusion = replace(
                    fusion, nodes=nodes, output=then.output, activation=then.activation
                )
                continue
            added = self._shortcut(fusion.output, index) if may_sum else None
            if added is None:
                break
            (where, addend), may_sum = added, False
            fusion = replace(
                fusion,
                nodes=(*fusion.nodes, where),
                output=self._nodes[where].output,
                addend=addend,
                adds_last=not may_activate,
            )
        return fusion if len(fusion.nodes) > 1 else None

    def _shortcut(self, value: str, index: int) -> tuple[int, str] | None:
        """Return the node that adds something of the same shape to ``value``, and what it adds."""
        readers = self._inner_readers(value)
        if len(readers) != 1 or readers[0] in self._groups:
            return None
        node = self._nodes[readers[0]]
        others = [name for name in node.inputs if name != value]
        if traits_of(node.operator).function != "add" or len(node.inputs) != 2 or len(others) != 1:
            return None
        arrays = [self._around.known.array(name) for name in (value, *others)]
        shapes = [None if array is None else array.shape for array in arrays]
        if None in shapes or shapes[0] != shapes[1] or not self._around.may_add(index, others[0]):
            return None
        return readers[0], others[0]

    def _next_activation(self, value: str) -> Fusion | None:
        """Return the activation that alone reads ``value``."""
        readers = self._inner_readers(value)
        fusion = self._activation(readers[0]) if readers else None
        if fusion is None or fusion.x != value or not set(readers) <= set(fusion.nodes):
            return None
        return fusion

    def _activation(self, index: int) -> Fusion | None:
        """Return the activation that node ``index`` is, or is a part of."""
        node = self._nodes[index]
        if index in self._groups:
            return self._groups[index]
        number = self._around.known.number
        function = activation_of(node.operator, node.inputs, node.attributes, number)
        if function is None:
            return None
        return Fusion((index,), node.output, function, x=node.inputs[0])

    def _inner_readers(self, value: str) -> Sequence[int]:
        """Return the readers of ``value``, none where something else needs it."""
        readers = self._readers.get(value, ())
        is_kept = value in self._around.kept or not self._free.issuperset(readers)
        return () if is_kept else readers
