"""The Darknet networks of the zoo: lists of sections, as the importer reads them from cfg files."""

from collections.abc import Callable

import onnx

from models.darknet.cfg import Section
from models.darknet.importer import CALIBRATION_RESOLUTION, class_count, objectness_biases
from models.darknet.network import build_network
from models.darknet.skeleton import skeleton
from models.zoo.darknet.classifiers import (
    darknet19,
    darknet53,
    densenet201,
    efficientnet_b0,
    resnet50,
    resnet152,
    tiny,
    vgg16,
)
from models.zoo.darknet.detectors import (
    yolov2,
    yolov2_tiny,
    yolov2_voc,
    yolov3,
    yolov3_tiny,
    yolov4,
    yolov4_csp,
    yolov4_p6,
    yolov4_tiny,
)
from models.zoo.entry import COCO, ZooEntry


def _entry(
    name: str,
    description: str,
    parameters: int,
    sections: Callable[[], list[Section]],
    multiple: int,
) -> ZooEntry:
    """Return a network as the zoo has it; its weights are those that the importer draws."""

    def definition(resolution: int) -> onnx.ModelProto:
        network = build_network(sections(), name, resolution)
        labels = COCO if class_count(network) == len(COCO) else ()
        return skeleton(network, name, labels)

    return ZooEntry(
        name=name,
        description=description,
        parameters=parameters,
        definition=definition,
        resolution=int(sections()[0].options["width"]),
        multiple=multiple,
        biases=lambda: objectness_biases(build_network(sections(), name)),
        calibration_resolution=CALIBRATION_RESOLUTION,
    )


# What is called Darknet's has a namesake of torchvision's in the zoo, with other layers or weights. At the
# end: what a resolution must be divisible by.
_NETWORKS: tuple[tuple[str, str, int, Callable[[], list[Section]], int], ...] = (
    ("yolov2", "YOLOv2, COCO detector", 50_962_889, yolov2, 32),
    ("yolov2-voc", "YOLOv2, PASCAL VOC detector", 50_655_389, yolov2_voc, 32),
    ("yolov2-tiny", "YOLOv2-tiny, COCO detector", 11_232_057, yolov2_tiny, 32),
    ("yolov3", "YOLOv3, COCO detector", 61_949_149, yolov3, 32),
    ("yolov3-tiny", "YOLOv3-tiny, COCO detector", 8_852_366, yolov3_tiny, 32),
    ("yolov4", "YOLOv4, COCO detector", 64_363_101, yolov4, 32),
    ("yolov4-tiny", "YOLOv4-tiny, COCO detector", 6_056_606, yolov4_tiny, 32),
    ("yolov4-csp", "Scaled-YOLOv4, CSP, COCO detector", 52_921_437, yolov4_csp, 32),
    ("yolov4-p6", "Scaled-YOLOv4, P6, COCO detector", 127_585_200, yolov4_p6, 64),
    ("darknet19", "Darknet-19", 20_842_376, darknet19, 32),
    ("darknet53", "Darknet-53", 41_609_928, darknet53, 32),
    ("darknet-tiny", "Tiny Darknet", 1_042_104, tiny, 32),
    ("resnet50-darknet", "Darknet's ResNet-50", 22_780_456, resnet50, 32),
    ("resnet152-darknet", "Darknet's ResNet-152", 57_416_232, resnet152, 32),
    ("densenet201-darknet", "Darknet's DenseNet-201", 17_173_160, densenet201, 32),
    ("vgg16-darknet", "Darknet's VGG-16", 138_357_544, vgg16, 32),
    ("efficientnet-b0-darknet", "Darknet's EfficientNet-B0", 4_853_720, efficientnet_b0, 32),
)
DARKNET_ENTRIES = tuple(_entry(*network) for network in _NETWORKS)
#: What makes the sections of each network, ``[net]`` first, by its name.
SECTIONS: dict[str, Callable[[], list[Section]]] = {
    name: sections for name, _, _, sections, _ in _NETWORKS
}
