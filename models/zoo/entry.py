"""A network's entry in the zoo: what it is before it is built, and how large it is then."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from models.errors import ModelError
from models.graphs.metadata import read_metadata
from models.graphs.onnx_writer import declared
from models.packs.records.ports import SourceSizes

# How large a network is: layers, bytes, parameters.

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


# Entries.

# Below, nothing is left of the image behind all strides; above, no machine holds the activations.
_LEAST_SIDE, _MOST_SIDE = 32, 4096

# Narrower networks have layers without channels, wider ones are too large for any machine.
_LEAST_WIDTH, _MOST_WIDTH = 1 / 16, 8

Biases = Callable[[], Mapping[str, NDArray[np.float32]]]


@dataclass(frozen=True)
class ZooEntry:
    """One network: what it is, how to make its skeleton, and which resolutions work.

    Args:
        parameters: trainable numbers at width 1 and the default resolution.
        definition: returns the skeleton (weights declared, not drawn) for a resolution in pixels, and,
            where ``scaled``, a factor for all channels.
        resolution: the default, in pixels.
        multiple: a resolution must be divisible by it.
        biases: returns what models/initial takes as biases; they fit every resolution.
        calibration_resolution: where weights are calibrated if they have the same shapes there: small,
            so that it is quick.
        aliases: other names that it is known by.
        options: what ``definition`` takes besides, by name.
    """

    name: str
    description: str
    parameters: int
    definition: Callable[..., onnx.ModelProto]
    resolution: int = 224
    multiple: int = 1
    scaled: bool = False
    biases: Biases | None = None
    calibration_resolution: int = 128
    aliases: tuple[str, ...] = ()
    options: frozenset[str] = frozenset()

    def is_called(self, name: str) -> bool:
        """Return whether people mean this network by ``name``.

        Case, blanks and ``-_.`` do not matter, nor does the order of words: "Tiny YOLOv3" is yolov3-tiny.
        """
        spelled = _spellings(name)
        return any(spelled & _spellings(own) for own in (self.name, *self.aliases))

    def checked_resolution(self, resolution: int | None) -> int:
        """Return ``resolution``, or the default for None.

        Raises:
            ModelError: it is too small or too large, or the network's strides do not divide it.
        """
        size = self.resolution if resolution is None else resolution
        if size % self.multiple:
            raise ModelError(
                f"zoo: {self.name}: resolution {size} is not a multiple of {self.multiple}"
            )
        least = max(_LEAST_SIDE, self.multiple)
        if not least <= size <= _MOST_SIDE:
            raise ModelError(
                f"zoo: {self.name}: resolution {size} is not from {least} to {_MOST_SIDE}"
            )
        return size

    def skeleton(
        self, resolution: int, width: float = 1.0, options: Mapping[str, Any] = MappingProxyType({})
    ) -> onnx.ModelProto:
        """Return the network without weights.

        Raises:
            ModelError: it has no such width or option, or does not take what one says.
        """
        for name in options:
            if name not in self.options:
                raise ModelError(f"zoo: {self.name} has no option {name}")
        if width == 1:
            return self.definition(resolution, **options)
        if not self.scaled:
            raise ModelError(f"zoo: {self.name}: its width is fixed")
        if not _LEAST_WIDTH <= width <= _MOST_WIDTH:
            raise ModelError(
                f"zoo: {self.name}: width {width:g} is not from {_LEAST_WIDTH:g} to {_MOST_WIDTH:g}"
            )
        return self.definition(resolution, width, **options)


def _spellings(name: str) -> set[str]:
    """Return ``name`` without case and marks: its words as they come, and sorted."""
    words = re.split(r"[-_\s]+", name.lower().replace(".", ""))
    return {"".join(words), "".join(sorted(words))}


_NAMES = """
person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant,
stop sign, parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe,
backpack, umbrella, handbag, tie, suitcase, frisbee, skis, snowboard, sports ball, kite,
baseball bat, baseball glove, skateboard, surfboard, tennis racket, bottle, wine glass, cup, fork,
knife, spoon, bowl, banana, apple, sandwich, orange, broccoli, carrot, hot dog, pizza, donut, cake,
chair, couch, potted plant, bed, dining table, toilet, tv, laptop, mouse, remote, keyboard,
cell phone, microwave, oven, toaster, sink, refrigerator, book, clock, vase, scissors, teddy bear,
hair drier, toothbrush
"""
COCO = tuple(name.strip() for name in _NAMES.replace("\n", " ").split(","))
