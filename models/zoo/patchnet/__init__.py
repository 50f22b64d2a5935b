"""Networks built from a memory budget: patch tunnels of inverted bottlenecks (seed 004).

``design.py``: an image as patches, and layers that fit; ``tunnels.py``: the graphs.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import onnx

from models.graphs.metadata import MEMORY, write_metadata
from models.packs.records.ports import DesignedLayer, DesignedMemory
from models.records import plain
from models.zoo.patchnet.design import Design, DesignOptions, design
from models.zoo.patchnet.tunnels import ANCHORS, classifier, detector

CLASSES = 1000
#: Pascal VOC's.
BOX_CLASSES = 20

#: What `patchnet` takes by name, and of which type.
OPTIONS = frozenset({"classes", *(field.name for field in fields(DesignOptions))} - {"width"})


def patchnet(resolution: int, width: float = 1.0, **given: Any) -> onnx.ModelProto:
    """Return a classifier; ``given``: ``classes`` and what `Options` has, by name.

    Raises:
        ModelError: as `design`.
    """
    return _built(classifier, 1, CLASSES, resolution, width, given)


def patchnet_ssdlite(resolution: int, width: float = 1.0, **given: Any) -> onnx.ModelProto:
    """Return a detector; see `patchnet`."""
    return _built(detector, len(ANCHORS), BOX_CLASSES, resolution, width, given)


def _built(
    make: Callable[[Design, int], onnx.ModelProto],
    stages: int,
    classes: int,
    resolution: int,
    width: float,
    given: dict[str, Any],
) -> onnx.ModelProto:
    options = DesignOptions(image=(resolution, resolution, 3), width=width)
    classes = given.pop("classes", classes)
    designed = design(replace(options, **given), stages)
    skeleton = make(designed, classes)
    write_metadata(skeleton, {MEMORY: plain(_memory(designed))})
    return skeleton


def _memory(designed: Design) -> DesignedMemory:
    layers = (
        DesignedLayer(
            name=layer.name, numbers=layer.peak, equation="Eq. 3" if layer.expansion else "Eq. 2"
        )
        for layer in designed.layers
    )
    return DesignedMemory(budget=designed.options.budget, layers=tuple(layers))
