"""Values whose channels are filled up with copies to blocks: where four does not divide them.

ONNX Runtime turns only multiples of four channels into blocks. So channels like those of ShuffleNet (58)
are filled up where no result shows it, with copies of other channels: convolutions make both with the
same weights. Operators on elements and pools take each channel by itself, so they make the same of both,
whatever they compute: a channel that fills has no infinity and no NaN that its original does not have.
(Zeros would: Log and Reciprocal make infinities of them, and a convolution makes NaN of an infinity and a
weight of zero.)

A convolution that reads a copy multiplies it with the weight of its original and with 2^-80
(blocked_weights.py). That changes no sum of numbers, which is rounded to 24 bits, and an infinity in both
channels keeps its sign in the sum. A sum of zero it would change. Numbers that are rounded to few bits have
such sums, as those of binary networks, and Sign makes one of what is left: where channels are rounded, none
are filled.

Multiples of four that are not whole blocks have zeros behind them, and weights of zero.
"""

from models.graphs.rewriter import Rewriter
from models.network.catalogue import traits_of
from models.network.names import Op
from models.network.node import Node
from models.network.operators.reading import Pooling, Reduction

_RANK = 4
_PLANES = (2, 3)
#: So many must divide the channels of what ReorderInput turns.
REORDERED_CHANNELS = 4


class FilledChannels:
    """The values of a graph that are filled up with copies; ``block``: channels in a block.

    ``_first``: of values with the same channels one that stands for all. ``_fixed``: values that keep their
    channels. ``_blocked``: values that convolutions would read in blocks; ``_unrolled``: those of them that
    plain convolutions would unroll, or read a channel at a time.
    """

    def __init__(self, rewriter: Rewriter, block: int) -> None:
        self._rewriter = rewriter
        self._block = block
        self._first: dict[str, str] = {}
        graph = rewriter.graph
        self._fixed = {*graph.inputs, *graph.outputs}
        self._blocked: set[str] = set()
        self._unrolled: set[str] = set()
        for node in graph.nodes:
            self._look(node)
        self._slow = {self._root(name) for name in self._unrolled}
        fixed = {self._root(name) for name in self._fixed}
        roots = {self._root(name) for name in self._blocked} - fixed
        self._names = {
            name
            for name in graph.values
            if self._root(name) in roots and rewriter.shape(name)[1] % REORDERED_CHANNELS
        }

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def on_windows(self, name: str) -> bool:
        """Return whether ``name`` is filled, and is slow to read in a plain layout."""
        return name in self._names and self._root(name) in self._slow

    def _look(self, node: Node) -> None:
        """Find what values have the same channels by ``node``, and which would rather have more."""
        constants = self._rewriter.constants
        tensors = [name for name in (*node.reads, *node.made) if name not in constants]
        record = traits_of(node.operator)
        if not all(map(self._is_image, tensors)):
            self._fixed.update(tensors)
        elif record.computes(Op.Conv) and all(name in constants for name in node.reads[1:]):
            self._note(node)
        elif self._is_by_channel(node) and self._have_same_channels(node, tensors):
            self._join(tensors)
        else:
            self._fixed.update(tensors)

    def _is_image(self, name: str) -> bool:
        value = self._rewriter.values.get(name)
        return value is not None and len(value.shape) == _RANK and value.dtype == "float32"

    def _is_by_channel(self, node: Node) -> bool:
        """Return whether ``node`` turns each channel into another one, all equally, and rounds none."""
        traits = traits_of(node.operator)
        if traits.function is not None:
            return not (traits.jumps and traits.keeps_order == "yes")
        operator = self._rewriter.operator(node)
        of_planes = isinstance(operator, Reduction) and operator.axes == _PLANES
        return isinstance(operator, Pooling) or of_planes

    def _have_same_channels(self, node: Node, tensors: list[str]) -> bool:
        rewriter = self._rewriter
        single = all(rewriter.is_single(name) for name in node.reads if name in rewriter.constants)
        return single and len({rewriter.shape(name)[1] for name in tensors}) == 1

    def _note(self, node: Node) -> None:
        """Note what a convolution says of the channels that it reads and makes."""
        x, y = node.inputs[0], node.output
        channels, features = (self._rewriter.shape(name)[1] for name in (x, y))
        group = node.attributes.get("group", 1)
        if group == 1 and channels > self._block:
            self._blocked.add(x)
            if set(self._rewriter.constants[node.inputs[1]].shape[2:]) != {1}:
                self._unrolled.add(x)
        elif group == channels == features > 1:
            self._join([x, y])
            self._blocked.add(x)
            self._unrolled.add(x)
        elif group > 1:
            self._fixed.update([x, y])

    def _root(self, name: str) -> str:
        while (first := self._first.get(name, name)) != name:
            name = first
        return name

    def _join(self, names: list[str]) -> None:
        root = self._root(names[0])
        for name in names[1:]:
            self._first[self._root(name)] = root
