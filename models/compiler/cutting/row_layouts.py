"""How values lie in memory, as operators on rows see them: planes of channels, or of blocks of channels.

Some operators compute nothing there: outside of the blocked layout each of their outputs is planes of what
they read, which a region copies, or reads where they lie. One node, or the three of a channel shuffle.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from models.graphs.graph import Graph
from models.network.catalogue import traits_of
from models.network.names import NCHWC, Op
from models.network.node import Node
from models.network.operators.movement import Movement, strides_of

#: Planes of one value after the other: name, first plane, how many.
Parts = tuple[tuple[str, int, int], ...]
_RANK = 4


class RowLayouts:
    """Follows layouts through ``graph``, whose nodes are given in their order.

    ``block``: channels in a block. What is not ``blocked`` lies as its shape says.
    """

    def __init__(self, graph: Graph, block: int) -> None:
        self._graph = graph
        self._block = block
        self.blocked: set[str] = set()
        # Blocked values under other shapes, and what is made of these.
        self._reshaped: set[str] = set()
        self._shapes: dict[str, tuple[int, ...]] = {}

    def note(self, node: Node) -> None:
        """Note what of the results of ``node`` is blocked."""
        if node.domain == NCHWC:
            if node.operator != Op.ReorderOutput:
                self.blocked.update(node.made)
        elif self.follows(node):
            self.blocked.update(node.made)
        elif any(name in self.blocked or name in self._reshaped for name in node.inputs):
            # ONNX Runtime adds a value a channel to five dimensions, the block the last, and goes back.
            back = node.operator == Op.Reshape and len(self._graph.array(node.output).shape) == 4
            (self.blocked if back else self._reshaped).update(node.made)

    def follows(self, node: Node) -> bool:
        """Return whether ``node`` leaves the layout of its inputs as it is, and that is the blocked one."""
        tensors = [name for name in node.inputs if name in self._graph.values]
        traits = traits_of(node.operator)
        on_channels = traits.computes(Op.Concat) or traits.computes(Op.Split)
        kept = on_channels or traits.function is not None
        return kept and bool(tensors) and all(name in self.blocked for name in tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape that ``name`` has as a tensor of the whole network."""
        return self._shapes.get(name) or self._graph.values[name].shape

    def has_rows(self, name: str) -> bool:
        """Return whether ``name`` is one image of floats, in a layout that is known."""
        if name not in self._graph.values or name in self._reshaped:
            return False
        shape = self.shape(name)
        return (
            len(shape) == 4
            and shape[0] == 1
            and all(shape)
            and self._graph.array(name).dtype == "float32"
        )

    def planes(self, name: str) -> int:
        """Return how many planes ``name`` is in memory: channels, or blocks of them."""
        return self.shape(name)[1] // (self._block if name in self.blocked else 1)

    def reshape(self, name: str, shape: tuple[int, ...]) -> None:
        """Say that ``name`` has ``shape``: between operators of a chain it is as small as a slice."""
        self._shapes[name] = shape


def planes_of(graph: Graph, node: Node) -> Mapping[str, Parts]:
    """Return the planes of inputs that each output of ``node`` is; nothing where it moves less than planes.

    A channel shuffle (ShuffleNet) is Reshape, Transpose, ``node``, and Reshape: what the first reads and
    the last makes is said instead.
    """
    move = graph.operator(node)
    by_result: dict[str, list[tuple[int, int, str]]] = {}
    for copy in move.copies if isinstance(move, Movement) else ():
        name = _image(graph, copy.x.name, "before")
        result = _image(graph, copy.y.name, "behind")
        plane = copy.sizes[-2:]
        strides, size = strides_of(plane), math.prod(plane)
        arrays = [
            graph.values.get(each) for each in (name, result)
        ]  # None: constant, or of no known size
        is_whole = all(array is not None and array.shape[-2:] == plane for array in arrays)
        if not is_whole or copy.read[-2:] != strides or copy.written[-2:] != strides:
            return {}
        outer = copy.sizes[:-2]
        at = np.indices(outer).reshape(len(outer), math.prod(outer))  # one plane has no outer sizes
        read, written = (
            (np.array(steps[:-2], np.int64) @ at + first) // size
            for steps, first in ((copy.read, copy.start), (copy.written, copy.place))
        )
        pairs = zip(written.tolist(), read.tolist(), strict=True)
        by_result.setdefault(result, []).extend((to, each, name) for to, each in pairs)
    return {result: tuple(_runs(sorted(planes))) for result, planes in by_result.items()}


def _image(graph: Graph, name: str, side: Literal["before", "behind"]) -> str:
    """Return what ``name``, if it is no image, is reshaped from or, alone, to."""
    if len(graph.array(name).shape) == _RANK or name in graph.outputs:
        return name
    maker, readers = graph.makers.get(name), graph.readers.get(name, [])
    index = maker if side == "before" else readers[0] if len(readers) == 1 else None
    node = None if index is None else graph.nodes[index]
    if node is None or not traits_of(node.operator).reshapes:
        return name
    return node.inputs[0] if side == "before" else node.output


def _runs(planes: Sequence[tuple[int, int, str]]) -> Iterator[tuple[str, int, int]]:
    """Yield name, first plane and length of what lies together in ``planes``: where to, which, of what."""
    for _, run in itertools.groupby(planes, lambda each: (each[0] - each[1], each[2])):
        (_, first, name), *others = run
        yield name, first, 1 + len(others)


def taken(graph: Graph, node: Node) -> tuple[int, range] | None:
    """Return the axis of a Slice and what it takes there; None of several axes, or of every other."""
    move = graph.operator(node)
    if not isinstance(move, Movement):
        return None
    (copy,) = move.copies
    whole, strides = copy.x.shape, strides_of(copy.x.shape)
    axes = [axis for axis, size in enumerate(copy.sizes) if size != whole[axis]]
    if len(axes) != 1 or copy.read != strides:
        return None
    first = copy.start // strides[axes[0]]
    return axes[0], range(first, first + copy.sizes[axes[0]])
