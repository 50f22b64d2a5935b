"""The zoo: networks built here from compact definitions, with seeded random weights.

They have the geometry of the published networks and serve to measure memory and delay; they
have learnt nothing.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx

from models.errors import ModelError
from models.graphs.onnx_writer import (
    EXTERNAL_DATA_BYTES,
    check_place,
    data_path,
    skeleton_graph,
    write_onnx,
)
from models.graphs.traits import count_parameters
from models.initial import initialise_small
from models.progress import Progress, silent
from models.zoo.classifiers import (
    PATCH,
    convnext,
    densenet,
    googlenet,
    inception_v2,
    resnet,
    squeezenet,
    vgg,
    vit,
)
from models.zoo.darknet import DARKNET_ENTRIES
from models.zoo.entry import BuiltNetwork, ZooEntry, source_sizes
from models.zoo.mobile_classifiers import (
    efficientnet_b0,
    mobilenet_v1,
    mobilenet_v2,
    mobilenet_v3_large,
)
from models.zoo.patchnet import OPTIONS as PATCHNET_OPTIONS
from models.zoo.patchnet import patchnet, patchnet_ssdlite
from models.zoo.yolo import anchor_biases, class_biases, yolo11n, yolov5s, yolov8n

_SUGGESTED = 3

_ENTRIES = (
    ZooEntry("resnet18", "ResNet-18, basic blocks", 11_689_512, partial(resnet, 18)),
    ZooEntry("resnet50", "ResNet-50, bottlenecks", 25_557_032, partial(resnet, 50)),
    ZooEntry("resnet152", "ResNet-152, bottlenecks", 60_192_808, partial(resnet, 152)),
    ZooEntry("densenet121", "DenseNet-121", 7_978_856, partial(densenet, 121)),
    ZooEntry("densenet201", "DenseNet-201", 20_013_928, partial(densenet, 201)),
    ZooEntry("mobilenetv1", "MobileNetV1, any --width", 4_231_976, mobilenet_v1, scaled=True),
    ZooEntry("mobilenetv2", "MobileNetV2", 3_504_872, mobilenet_v2),
    ZooEntry("mobilenetv3-large", "MobileNetV3-large", 5_483_032, mobilenet_v3_large),
    ZooEntry("efficientnet-b0", "EfficientNet-B0", 5_288_548, efficientnet_b0),
    ZooEntry("squeezenet1.0", "SqueezeNet 1.0", 1_248_424, partial(squeezenet, "1.0")),
    ZooEntry("squeezenet1.1", "SqueezeNet 1.1", 1_235_496, partial(squeezenet, "1.1")),
    ZooEntry(
        "googlenet",
        "GoogLeNet (Inception V1) with batch norms",
        6_624_904,
        googlenet,
        aliases=("inceptionv1",),
    ),
    ZooEntry("inceptionv2", "Inception V2 (BN-Inception)", 11_188_288, inception_v2),
    ZooEntry("vgg16", "VGG-16", 138_357_544, partial(vgg, 16)),
    ZooEntry("vgg19", "VGG-19", 143_667_240, partial(vgg, 19)),
    ZooEntry(
        "convnext-tiny",
        "ConvNeXt-T",
        28_589_128,
        partial(convnext, (3, 3, 9, 3), (96, 192, 384, 768)),
    ),
    ZooEntry(
        "vit-s16",
        "ViT-S/16, vision transformer",
        22_050_664,
        partial(vit, 384, 12),
        multiple=PATCH,
        aliases=("vit-small", "vit-small-patch16-224"),
    ),
    *DARKNET_ENTRIES,
    *(
        ZooEntry(name, description, parameters, definition, scaled=True, options=PATCHNET_OPTIONS)
        for name, description, parameters, definition in (
            ("patchnet", "patch tunnels in a memory budget", 3_785_435, patchnet),
            ("patchnet-ssdlite", "a detector of such tunnels", 3_710_115, patchnet_ssdlite),
        )
    ),
    *(
        ZooEntry(
            name,
            f"{description}, COCO detector, any --width",
            parameters,
            definition,
            resolution=640,
            multiple=32,
            scaled=True,
            biases=biases,
        )
        for name, description, parameters, definition, biases in (
            ("yolov5s", "YOLOv5s", 7_235_389, yolov5s, anchor_biases),
            ("yolov8n", "YOLOv8n", 3_157_200, yolov8n, class_biases),
            ("yolo11n", "YOLO11n", 2_624_080, yolo11n, class_biases),
        )
    ),
)

# The weights are held while they are drawn; VGG's grow with the square of the resolution.
_MOST_WEIGHT_BYTES = 1 << 32

ENTRIES: dict[str, ZooEntry] = {entry.name: entry for entry in _ENTRIES}


def find(name: str) -> ZooEntry:
    """Return the network called ``name``; see `ZooEntry.is_called`.

    Raises:
        ModelError: there is none.
    """
    for entry in ENTRIES.values():
        if entry.is_called(name):
            return entry
    longer = [known for known in ENTRIES if name and known.startswith(name.lower())]
    close = (longer or get_close_matches(name.lower(), ENTRIES))[:_SUGGESTED]
    meant = f" (did you mean {', '.join(close)}?)" if close else ""
    raise ModelError(f"zoo: no network called {name!r}{meant}; there are {', '.join(ENTRIES)}")


def build(
    name: str,
    path: Path,
    resolution: int | None = None,
    width: float = 1.0,
    seed: int = 0,
    *,
    options: Mapping[str, Any] = MappingProxyType({}),
    progress: Progress = silent,
) -> BuiltNetwork:
    """Build a network of the zoo with random weights and write it to ``path`` as ONNX.

    A network has the same weights at every resolution, unless their shapes depend on it (VGG).

    Args:
        name: as ``find`` takes it.
        path: the file; weights of 1 GiB and more go to ``path`` + ".data".
        resolution: side of the input in pixels; the network's own default when None.
        width: factor for all channels, for networks that have one.
        seed: of the weights.
        options: what else the network takes (`ZooEntry.options`), by name.
        progress: is called at each step.

    Raises:
        ModelError: no such network, resolution, width or option, or ``path`` cannot be written.
    """
    entry = find(name)
    size = entry.checked_resolution(resolution)
    skeleton = entry.skeleton(size, width, options)
    sizes = source_sizes(skeleton)
    if sizes.weight_bytes > _MOST_WEIGHT_BYTES:
        raise ModelError(
            f"zoo: {entry.name}: {sizes.weight_bytes} bytes of weights at resolution {size}"
            f" are more than {_MOST_WEIGHT_BYTES}"
        )
    check_place(path)
    small = _smaller(entry, width, options)
    biases = entry.biases() if entry.biases else None
    arrays = initialise_small(skeleton, small, seed, biases, progress)
    progress("write")
    write_onnx(skeleton, arrays, path)
    external = sizes.weight_bytes >= EXTERNAL_DATA_BYTES
    return BuiltNetwork(
        name=entry.name,
        file=path,
        bytes=path.stat().st_size + (data_path(path).stat().st_size if external else 0),
        resolution=size,
        layers=sizes.layers,
        weight_bytes=sizes.weight_bytes,
        largest_layer_bytes=sizes.largest_layer_bytes,
        parameters=count_parameters(skeleton_graph(skeleton)),
        tool=sizes.tool,
    )


def _smaller(entry: ZooEntry, width: float, options: Mapping[str, Any]) -> onnx.ModelProto | None:
    """Return the network at a resolution where its weights are drawn quickly; None: options say it all."""
    return None if options else entry.skeleton(entry.calibration_resolution, width)
