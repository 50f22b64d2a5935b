"""Images of few channels are made larger as they are, not in blocks.

ONNX Runtime keeps what a blocked convolution makes in that layout while it interpolates: one channel of an
edge detector takes the memory, and the time, of sixteen.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from models.compiler.analysis.graph import NCHWC_DOMAIN
from models.graphs.nodes import attributes, reads, replace_nodes
from models.network.operators.elements import POINTWISE

Shape = tuple[int, ...]

_RANK = 4
# From here on Resize takes its scales third, and says how places become places.
_OPSET = 11


def interpolate_few(model: onnx.ModelProto, shapes: Mapping[str, Shape], block: int) -> None:
    """Let half a block of channels or less leave the blocked layout before, not behind, an interpolation.

    ``shapes``: of every value of known size, by name. ``block``: channels in a block.
    """
    version = max((item.version for item in model.opset_import if not item.domain), default=0)
    if version < _OPSET:
        return
    leaving = _Leaving(model, shapes, block)
    nodes = [made for node in model.graph.node for made in leaving.rewritten(node)]
    if leaving.planes:
        replace_nodes(model, nodes)


class _Leaving:
    """``planes``: what blocked values, which nothing makes any more, are called outside of that layout."""

    def __init__(self, model: onnx.ModelProto, shapes: Mapping[str, Shape], block: int) -> None:
        self.planes: dict[str, str] = {}
        self._graph = model.graph
        self._shapes = shapes
        self._block = block
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in model.graph.node:
            for name in reads(node):
                self._readers.setdefault(name, []).append(node)

    def rewritten(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return what is instead of ``node``."""
        source = node.input[0] if node.input else ""
        if source in self.planes:
            if node.op_type == "ReorderOutput":
                return []
            return [_renamed(node, self.planes[source], self.planes[node.output[0]])]
        if not _interpolates(node):
            return [node]
        found: dict[str, str] = {}
        if not self._leave(node.output[0], found):
            return [node]
        self.planes |= found
        return self._resized(node, found)

    def _leave(self, name: str, found: dict[str, str]) -> bool:
        """Note what ``name``, and what is made of it, are as planes; return whether all of them leave."""
        readers = self._readers.get(name, [])
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
        shape = self._shapes.get(node.output[0], ())
        few = len(shape) == _RANK and 2 * shape[1] <= self._block
        return few and node.op_type == "ReorderOutput" and not attributes(node).get("channels_last")

    def _resized(self, node: onnx.NodeProto, found: Mapping[str, str]) -> list[onnx.NodeProto]:
        given, result = attributes(node), found[node.output[0]]
        ends = (end for name in found for end in self._readers[name] if self._ends(end))
        before, scales = f"{result}/before", f"{result}/scales"
        factors = np.array(given["scales"], np.float32)
        self._graph.initializer.append(numpy_helper.from_array(factors, scales))
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
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[0], copy.output[0] = source, result
    copy.name = result
    return copy
