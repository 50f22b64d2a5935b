"""How values lie in memory, seen from who runs on rows: planes of channels, or of blocks of channels.

Some operators compute nothing there: outside of the blocked layout each of their outputs is planes of what
they read, which a region copies, or reads where they lie. One node, or the three of a channel shuffle.
"""

from collections.abc import Mapping, Sequence

import onnx

from models.compiler.analysis.graph import NCHWC_DOMAIN, Graph
from models.graphs.nodes import attributes, made
from models.network.operators.elements import POINTWISE
from models.network.operators.movement import RESHAPES, Move, strides_of

#: Planes of one value after the other: name, first plane, how many.
Parts = tuple[tuple[str, int, int], ...]
_CHANNELS = 1
_SHUFFLE = [0, 2, 1, 3, 4]


class RowLayouts:
    """Follows layouts through ``graph``, whose nodes it is told in their order.

    ``block``: channels in a block. What is not ``blocked`` lies as its shape says.
    """

    def __init__(self, graph: Graph, block: int) -> None:
        self._graph = graph
        self._block = block
        self.blocked: set[str] = set()
        # Blocked values under other shapes, and what is made of these.
        self._reshaped: set[str] = set()
        self._shapes: dict[str, tuple[int, ...]] = {}

    def note(self, node: onnx.NodeProto) -> None:
        """Note what of the results of ``node`` is blocked."""
        if node.domain == NCHWC_DOMAIN:
            if node.op_type != "ReorderOutput":
                self.blocked.update(made(node))
        elif self.follows(node):
            self.blocked.update(made(node))
        elif any(name in self.blocked or name in self._reshaped for name in node.input):
            # ONNX Runtime adds a value a channel to five dimensions, the block the last, and goes back.
            back = node.op_type == "Reshape" and len(self._graph.array(node.output[0]).shape) == 4
            (self.blocked if back else self._reshaped).update(made(node))

    def follows(self, node: onnx.NodeProto) -> bool:
        """Return whether ``node`` leaves the layout of its inputs as it is, and that is the blocked one."""
        tensors = [name for name in node.input if name in self._graph.values]
        kept = node.op_type in POINTWISE or node.op_type in ("Concat", "Split")
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


def sliced(graph: Graph, node: onnx.NodeProto) -> Mapping[str, Parts]:
    """Return what a Slice along channels takes, by its output; nothing where it takes anything else."""
    axis, planes = taken(graph, node) or (0, range(0))
    return (
        {node.output[0]: ((node.input[0], planes.start, len(planes)),)} if axis == _CHANNELS else {}
    )


def taken(graph: Graph, node: onnx.NodeProto) -> tuple[int, range] | None:
    """Return the axis of a Slice and what it takes there; None of several axes, or of every other."""
    move = graph.operator(node)
    if not isinstance(move, Move):
        return None
    (copy,) = move.copies
    whole, strides = copy.x.shape, strides_of(copy.x.shape)
    axes = [axis for axis, size in enumerate(copy.sizes) if size != whole[axis]] or [_CHANNELS]
    if len(axes) > 1 or copy.read != strides:
        return None
    first = copy.start // strides[axes[0]]
    return axes[0], range(first, first + copy.sizes[axes[0]])


def shuffled(graph: Graph, node: onnx.NodeProto, readers: Sequence[int]) -> Mapping[str, Parts]:
    """Return the planes that a channel shuffle puts together, by what they are reshaped to again.

    It is Reshape, Transpose and Reshape (ShuffleNet); ``node``: the second, the only one with a kernel;
    ``readers``: of its output.
    """
    maker = graph.makers.get(node.input[0])
    beside = [*([] if maker is None else [maker]), *(readers if len(readers) == 1 else ())]
    ends = [graph.nodes[index] for index in beside if graph.nodes[index].op_type in RESHAPES]
    if (
        attributes(node).get("perm") != _SHUFFLE
        or len(ends) != 2
        or node.output[0] in graph.outputs
    ):
        return {}
    source, result = ends[0].input[0], ends[1].output[0]
    _, groups, channels, height, width = graph.array(node.input[0]).shape
    shape = (1, groups * channels, height, width)
    if any(graph.array(name).shape != shape for name in (source, result)):
        return {}
    return {
        result: tuple(
            (source, group * channels + channel, 1)
            for channel in range(channels)
            for group in range(groups)
        )
    }
