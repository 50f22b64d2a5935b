"""The Darknet families of the zoo: lists of sections, as the importer reads them from cfg files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

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


@dataclass(frozen=True)
class Family:
    """One network: its name in the zoo, what it is, its sections, ``[net]`` first.

    Args:
        parameters: trainable numbers at the default resolution.
        multiple: a resolution must be divisible by it.
    """

    name: str
    description: str
    parameters: int
    sections: Callable[[], list[Section]]
    multiple: int = 32

    @property
    def resolution(self) -> int:
        """Default side of the input in pixels."""
        return int(self.sections()[0].options["width"])

    def entry(self) -> ZooEntry:
        """Return the network as the zoo has it; its weights are those that the importer draws."""
        return ZooEntry(
            name=self.name,
            description=self.description,
            parameters=self.parameters,
            definition=self._skeleton,
            resolution=self.resolution,
            multiple=self.multiple,
            biases=self._biases,
            calibration_resolution=CALIBRATION_RESOLUTION,
        )

    def _skeleton(self, resolution: int) -> onnx.ModelProto:
        network = build_network(self.sections(), self.name, resolution)
        labels = COCO if class_count(network) == len(COCO) else ()
        return skeleton(network, self.name, labels)

    def _biases(self) -> Mapping[str, NDArray[np.float32]]:
        return objectness_biases(build_network(self.sections(), self.name))


# What is called Darknet's has a namesake of torchvision's in the zoo, with other layers or weights.
FAMILIES = (
    Family("yolov2", "YOLOv2, COCO detector", 50_962_889, yolov2),
    Family("yolov2-voc", "YOLOv2, PASCAL VOC detector", 50_655_389, yolov2_voc),
    Family("yolov2-tiny", "YOLOv2-tiny, COCO detector", 11_232_057, yolov2_tiny),
    Family("yolov3", "YOLOv3, COCO detector", 61_949_149, yolov3),
    Family("yolov3-tiny", "YOLOv3-tiny, COCO detector", 8_852_366, yolov3_tiny),
    Family("yolov4", "YOLOv4, COCO detector", 64_363_101, yolov4),
    Family("yolov4-tiny", "YOLOv4-tiny, COCO detector", 6_056_606, yolov4_tiny),
    Family("yolov4-csp", "Scaled-YOLOv4, CSP, COCO detector", 52_921_437, yolov4_csp),
    Family("yolov4-p6", "Scaled-YOLOv4, P6, COCO detector", 127_585_200, yolov4_p6, 64),
    Family("darknet19", "Darknet-19", 20_842_376, darknet19),
    Family("darknet53", "Darknet-53", 41_609_928, darknet53),
    Family("darknet-tiny", "Tiny Darknet", 1_042_104, tiny),
    Family("resnet50-darknet", "Darknet's ResNet-50", 22_780_456, resnet50),
    Family("resnet152-darknet", "Darknet's ResNet-152", 57_416_232, resnet152),
    Family("densenet201-darknet", "Darknet's DenseNet-201", 17_173_160, densenet201),
    Family("vgg16-darknet", "Darknet's VGG-16", 138_357_544, vgg16),
    Family("efficientnet-b0-darknet", "Darknet's EfficientNet-B0", 4_853_720, efficientnet_b0),
)
