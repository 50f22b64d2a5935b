"""How values lie in memory, seen from who runs on rows: planes of channels, or of blocks of channels."""

import onnx

from models.compiler.analysis.graph import NCHWC_DOMAIN, Graph
from models.graphs.nodes import made
from models.network.operators.elements import POINTWISE


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
