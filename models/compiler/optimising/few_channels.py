"""Images of few channels are made larger as they are, not in blocks.

ONNX Runtime keeps what a blocked convolution makes in that layout while it interpolates: one channel of an
edge detector takes the memory, and the time, of sixteen.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper

from models.compiler.analysis.graph import NCHWC_DOMAIN
from models.graphs.nodes import attributes, copied
from models.graphs.rewriting import Rewriter
from models.network.fields import Array
from models.network.operators.elements import POINTWISE

_RANK = 4
# From here on Resize takes its scales third, and says how places become places.
_OPSET = 11


class InterpolateFew(Rewriter):
    """Lets half a block of channels or less leave the blocked layout before, not behind, an interpolation.

    ``block``: channels in a block.
    """

    def __init__(self, model: onnx.ModelProto, values: Mapping[str, Array], block: int) -> None:
        super().__init__(model, values)
        self._block = block
        # What blocked values, which nothing makes any more, are called outside of that layout.
        self._planes: dict[str, str] = {}

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        source = node.input[0] if node.input else ""
        if source in self._planes:
            if node.op_type == "ReorderOutput":
                return []
            return [_renamed(node, self._planes[source], self._planes[node.output[0]])]
        if not _interpolates(node) or self.versions.get("", 0) < _OPSET:
            return None
        found: dict[str, str] = {}
        if not self._leave(node.output[0], found):
            return None
        self._planes |= found
        return self._resized(node, found)

    def _leave(self, name: str, found: dict[str, str]) -> bool:
        """Note what ``name``, and what is made of it, are as planes; return whether all of them leave."""
        readers = self.readers[name]
        ends = [node for node in readers if self._ends(node)]
        found[name] = ends[0].output[0] if ends else f"{name}/planes"
        others = [node for node in readers if node not in ends]
        return len(ends) <= 1 <= len(readers) and all(
            node.op_type in POINTWISE
            and len(node.input) == 1
            and self._leave(node.output[0], found)
            for node in others
        )

    def _ends(self, node: onnx.NodeProto) -> bool:
        """Return whether ``node`` makes planes of half a block or less of channels."""
        shape = self.shape(node.output[0])
        few = len(shape) == _RANK and 2 * shape[1] <= self._block
        return few and node.op_type == "ReorderOutput" and not attributes(node).get("channels_last")

    def _resized(self, node: onnx.NodeProto, found: Mapping[str, str]) -> list[onnx.NodeProto]:
        given, result = attributes(node), found[node.output[0]]
        ends = (end for name in found for end in self.readers[name] if self._ends(end))
        before = f"{result}/before"
        scales = self.constant(f"{result}/scales", np.array(given["scales"], np.float32))
        resize = helper.make_node(
            "Resize",
            [before, "", scales],
            [result],
            node.name,
            mode="linear",
            coordinate_transformation_mode=given["coordinate_transformation_mode"],
        )
        return [_renamed(next(ends), node.input[0], before), resize]


def _interpolates(node: onnx.NodeProto) -> bool:
    blocked = node.domain == NCHWC_DOMAIN and node.op_type == "Upsample"
    return blocked and attributes(node).get("mode", "nearest") == "linear"


def _renamed(node: onnx.NodeProto, source: str, result: str) -> onnx.NodeProto:
    return copied(node, [source, *node.input[1:]], [result, *node.output[1:]], result)
