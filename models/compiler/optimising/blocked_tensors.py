"""Tensors in both layouts: plain (NCHW), and blocked (NCHWc), in which convolutions compute.

A blocked tensor has its channels in blocks that lie side by side: of [N, C, H, W] the bytes are those of
[N, C/b, H, W, b], and C is filled up to a multiple of the block b. ONNX Runtime has operators for it (the
domain com.microsoft.nchwc), and two that turn a tensor: ReorderInput and ReorderOutput. Here is what a pass
knows of them; which value has which layout is chosen in layout.py.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from models.compiler.optimising.blocked_weights import BlockedWeights, BlockFill
from models.compiler.optimising.filled_channels import REORDERED_CHANNELS, FilledChannels
from models.graphs.graph import Graph
from models.graphs.rewriter import Rewriter
from models.network.fields import Array
from models.network.names import MICROSOFT, NCHWC, Op
from models.network.node import Node

CHANNEL_AXIS = 1
RANK = 4
#: From channels in front of pixels to channels behind them, and back.
TO_PIXELS, TO_PLANES = [0, 2, 3, 1], [0, 3, 1, 2]


class BlockedTensors(Rewriter):
    """A pass that gives values of ``graph`` a blocked layout, with ``block`` channels in a block.

    ``weights``: of blocked convolutions. ``filled``: values whose channels copies fill up. ``blocked``: by
    plain values the blocked tensors that equal them.

    ``_unread``: plain values that no node has read until now, of those that are blocked.
    """

    def __init__(self, graph: Graph, block: int, folder: Path | None = None) -> None:
        super().__init__(graph, folder)
        self.weights = BlockedWeights(self, block)
        self.filled = FilledChannels(self, block)
        self.blocked: dict[str, str] = {}
        self._unread: set[str] = set()
        self._block = block

    def run(self) -> Graph:
        graph = super().run()
        read = {name for node in graph.nodes for name in node.reads}
        return replace(
            graph,
            constants={name: array for name, array in graph.constants.items() if name in read},
            opsets={**graph.opsets, MICROSOFT: 1, NCHWC: 1, **graph.opsets},
        )

    def is_image(self, name: str) -> bool:
        """Return whether a value is [N, C, H, W] in float32, of known size."""
        value = self.values.get(name)
        return value is not None and len(value.shape) == RANK and value.dtype == "float32"

    def channels(self, name: str) -> int:
        """Return the channels of an image."""
        return self.shape(name)[CHANNEL_AXIS]

    def padded(self, channels: int) -> int:
        """Return ``channels`` filled up to blocks."""
        return channels + -channels % self._block

    def fills_blocks(self, name: str) -> bool:
        """Return whether all channels of an image, perhaps with copies, are blocks of them."""
        return self.is_image(name) and (
            not self.channels(name) % self._block or name in self.filled
        )

    def fill(self, name: str) -> BlockFill:
        """Return what fills the last block of an image."""
        return BlockFill.COPIES if name in self.filled else BlockFill.ZEROS

    def may_enter(self, name: str) -> bool:
        """Return whether a blocked tensor of an image can be had: copies come from convolutions alone."""
        if name in self.filled:
            return name in self.blocked
        return self.is_image(name) and not self.channels(name) % REORDERED_CHANNELS

    def new(self, name: str) -> str:
        """Return what the blocked tensor that equals ``name`` is called, which a node is to produce."""
        blocked = self.fresh(f"{name}/blocked")
        batch, channels, *size = self.shape(name)
        shape = (batch, self.padded(channels), *size)
        self.values[blocked] = Array(dtype="float32", shape=shape)
        self.blocked[name] = blocked
        return blocked

    def produced(self, names: Iterable[str], *nodes: Node) -> list[Node]:
        """Return ``nodes``, which produce the blocked tensors of ``names``, and outputs of the graph."""
        names = list(names)
        ends = [self.leave(name, name) for name in names if name in self.outputs]
        self._unread.update(name for name in names if name not in self.outputs)
        return [*nodes, *ends]

    def plain(self, names: Iterable[str]) -> Iterator[Node]:
        """Yield what produces those plain values ``names`` that are only blocked until now."""
        for name in names:
            if name in self._unread:
                self._unread.remove(name)
                yield self.leave(name, name)

    def leave(self, name: str, result: str, **attributes: int) -> Node:
        """Return the node that produces ``result`` of the blocked tensor of ``name``."""
        channels = self.channels(name)
        title = f"{result}/reordered"
        return self.node(
            Op.ReorderOutput, [self.blocked[name]], [result], title, channels=channels, **attributes
        )

    def enter(self, name: str) -> list[Node]:
        """Return the nodes that produce the blocked tensor of ``name``: none where there is one already.

        Of pixels with channels behind them (a transposed image) it is turned at once.
        """
        if name in self.blocked:
            return []
        source, turned = self._pixels(name)
        before = list(self.plain([source]))
        blocked = self.new(name)
        return [*before, self.node(Op.ReorderInput, [source], [blocked], blocked, **turned)]

    def _pixels(self, name: str) -> tuple[str, dict[str, int]]:
        """Return what ``name`` is a transpose of, if that can be reordered, else ``name``."""
        producer = self.makers.get(name)
        if producer is None or producer.operator != Op.Transpose:
            return name, {}
        if producer.attributes.get("perm") != TO_PLANES:
            return name, {}
        return producer.inputs[0], {"channels_last": 1}
