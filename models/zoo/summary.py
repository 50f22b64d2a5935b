"""How large a network is: layers, bytes, parameters."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from models.graphs.metadata import read_metadata
from models.graphs.writer import declared
from models.packs.records.ports import SourceSizes

#: The tool of ``SourceSizes`` that are counted here.
OURS = "layerstream"


@dataclass(frozen=True)
class BuiltNetwork:
    """A network that was written; ``bytes`` are those of ``file`` and of the data file beside it.

    ``tool``: what counts as a layer, as in SourceSizes.
    """

    name: str
    file: Path
    bytes: int
    resolution: int
    layers: int
    weight_bytes: int
    largest_layer_bytes: int
    parameters: int
    tool: str


def source_sizes(skeleton: onnx.ModelProto) -> SourceSizes:
    """Return what the network's own tool counts where its metadata say so, else what we count.

    We count as a layer every node that reads weights; a batch norm that reads such a node's output
    belongs to it. All arrays count, the statistics of batch norms included.

    Raises:
        OnnxError: an entry of the metadata cannot be read.
    """
    if sizes := read_metadata(skeleton, Path(skeleton.graph.name)).sizes:
        return sizes
    layers = _layer_bytes(skeleton, declared(skeleton))
    return SourceSizes(
        tool=OURS,
        layers=len(layers),
        weight_bytes=sum(layers),
        largest_layer_bytes=max(layers, default=0),
    )


def _layer_bytes(skeleton: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> list[int]:
    layers: list[int] = []
    layer_of: dict[str, int] = {}  # the layer that makes a value
    counted: set[str] = set()
    for node in skeleton.graph.node:
        own = {name for name in node.input if name in shapes} - counted
        if not own:
            continue
        counted |= own
        if node.op_type != "BatchNormalization" or node.input[0] not in layer_of:
            layer_of[node.output[0]] = len(layers)
            layers.append(0)
        index = layer_of.get(node.output[0], layer_of.get(node.input[0], 0))
        layers[index] += 4 * sum(math.prod(shapes[name]) for name in own)
    return layers
