"""The zoo: networks built here from compact definitions, with seeded random weights.

They have the geometry of the published networks and serve to measure memory and delay; they
have learnt nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import onnx

from models.errors import ModelError
from models.zoo.builder import save
from models.zoo.resnet import resnet
from models.zoo.vgg import vgg

__all__ = ["ENTRIES", "ZooEntry", "build", "save"]


@dataclass(frozen=True)
class ZooEntry:
    """One network: what it is, how to build it for a resolution, and which resolutions work."""

    name: str
    description: str
    parameters: int
    definition: Callable[[int], onnx.ModelProto]
    resolution: int = 224
    multiple: int = 32


ENTRIES: dict[str, ZooEntry] = {
    entry.name: entry
    for entry in (
        ZooEntry("resnet18", "ResNet-18, basic blocks", 11_689_512, partial(resnet, 18)),
        ZooEntry("resnet50", "ResNet-50, bottlenecks", 25_557_032, partial(resnet, 50)),
        ZooEntry("resnet152", "ResNet-152, bottlenecks", 60_192_808, partial(resnet, 152)),
        ZooEntry("vgg16", "VGG-16", 138_357_544, partial(vgg, 16)),
        ZooEntry("vgg19", "VGG-19", 143_667_240, partial(vgg, 19)),
    )
}


def build(name: str, resolution: int | None = None) -> onnx.ModelProto:
    """Build a network of the zoo; ``resolution`` in pixels, its own default when None.

    Raises:
        ModelError: no such network, or a resolution that its strides do not divide.
    """
    if name not in ENTRIES:
        raise ModelError(f"zoo: no network called {name!r}; there are {', '.join(ENTRIES)}")
    entry = ENTRIES[name]
    size = entry.resolution if resolution is None else resolution
    if size < entry.multiple or size % entry.multiple:
        raise ModelError(f"zoo: {name}: resolution {size} is not a multiple of {entry.multiple}")
    return entry.definition(size)
