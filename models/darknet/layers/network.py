"""From sections to layers with shapes: the geometry of a network, without a single weight.

Invariant: every layer reads the image or layers before it, shapes are positive, and no tensor or array
is larger than `MAX_ELEMENTS`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from models.darknet.cfg.options import SectionOptions
from models.darknet.cfg.section import Section
from models.darknet.errors import DarknetError
from models.darknet.layers import heads, joins, spatial, vectors
from models.darknet.layers.layer import DarknetLayer, DarknetNetwork, Shape, WeightArray
from models.darknet.layers.scope import SectionScope
from models.darknet.layers.spatial import times

__all__ = ["DarknetLayer", "DarknetNetwork", "WeightArray", "build_network"]

# 1 GiB of float32; all weights together: 4 GiB.
MAX_ELEMENTS = 1 << 28
MAX_WEIGHTS = 1 << 30

_BUILDERS: dict[str, Callable[[SectionScope], DarknetLayer]] = {
    "convolutional": spatial.convolutional,
    "maxpool": spatial.maxpool,
    "avgpool": spatial.avgpool,
    "upsample": spatial.upsample,
    "reorg": spatial.reorg,
    "crop": spatial.crop,
    "route": joins.route,
    "shortcut": joins.shortcut,
    "scale_channels": joins.scale_channels,
    "sam": joins.sam,
    "connected": vectors.connected,
    "softmax": vectors.softmax,
    "dropout": vectors.identity,
    "cost": vectors.identity,
    "yolo": heads.yolo,
    "region": heads.region,
}


def build_network(
    sections: Sequence[Section], where: str = "network", resolution: int | None = None
) -> DarknetNetwork:
    """Return the layers that ``sections`` (the first one is [net]) describe.

    Args:
        sections: of a cfg file or made by a definition.
        where: what errors start with, such as the name of the file.
        resolution: width and height of the image in pixels instead of those in [net].

    Raises:
        DarknetError: what a section says is unknown, impossible or not supported.
    """
    if not sections or SectionOptions(sections[0], where, -1).kind != "net":
        raise DarknetError(f"{where}: does not start with a section [net]")
    if resolution is not None:
        sections = _at_resolution(sections, where, resolution)
    net, image = _image(SectionOptions(sections[0], where, -1))
    layers: list[DarknetLayer] = []
    for index, section in enumerate(sections[1:]):
        options = SectionOptions(section, where, index)
        if options.kind == "net":
            options.fail("there is a section [net] already")
        options.check_names()
        layers.append(_BUILDERS[options.kind](SectionScope(options, image, layers)))
        _check_sizes(options, layers[-1])
    _check_all(where, layers)
    channels, height, width = image
    return DarknetNetwork(net, width, height, channels, tuple(layers), _outputs(layers))


def _at_resolution(sections: Sequence[Section], where: str, resolution: int) -> list[Section]:
    """Return ``sections`` for square images; a crop keeps its part of the image, as in Darknet."""
    net = SectionOptions(sections[0], where, -1)
    sides = {"width": net.integer("width"), "height": net.integer("height")}
    changed = [_with(sections[0], {side: str(resolution) for side in sides})]
    for index, section in enumerate(sections[1:]):
        options = SectionOptions(section, where, index)
        crop = {f"crop_{side}": old for side, old in sides.items() if options.kind == "crop"}
        scaled = {key: options.integer(key, 1) * resolution // old for key, old in crop.items()}
        changed.append(_with(section, {key: str(max(side, 1)) for key, side in scaled.items()}))
    return changed


def _with(section: Section, options: dict[str, str]) -> Section:
    return replace(section, options={**section.options, **options}) if options else section


def _image(options: SectionOptions) -> tuple[Section, Shape]:
    options.check_names()
    width, height, channels = (options.integer(side) for side in ("width", "height", "channels"))
    if width * height * channels > MAX_ELEMENTS:
        options.fail(f"an image of {width}x{height}x{channels} is larger than any network's")
    return options.section, (channels, height, width)


def _check_sizes(options: SectionOptions, layer: DarknetLayer) -> None:
    if math.prod(layer.shape) > MAX_ELEMENTS:
        options.fail(f"its output of {times(layer.shape)} is larger than any network's")
    for array in layer.arrays:
        if array.size > MAX_ELEMENTS:
            options.fail(f"{array.name} {list(array.shape)} is larger than any network's")


def _check_all(where: str, layers: list[DarknetLayer]) -> None:
    if not any(layer.kind not in ("cost", "dropout") for layer in layers):
        raise DarknetError(f"{where}: no layers in it")
    numbers = sum(array.size for layer in layers for array in layer.arrays)
    if numbers > MAX_WEIGHTS:
        raise DarknetError(f"{where}: {numbers} weights are more than any network has")


def _outputs(layers: list[DarknetLayer]) -> tuple[int, ...]:
    detections = tuple(x.index for x in layers if x.kind in ("yolo", "region"))
    return detections or (max(x.index for x in layers if x.kind != "cost"),)
