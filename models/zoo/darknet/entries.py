"""The Darknet families as entries of the zoo."""

from collections.abc import Mapping
from functools import partial

import numpy as np
import onnx
from numpy.typing import NDArray

from models.darknet.network import build_network
from models.darknet.seeded import CALIBRATION_RESOLUTION, objectness_biases
from models.darknet.to_onnx import skeleton
from models.zoo.darknet import FAMILIES, Family
from models.zoo.entry import ZooEntry


def darknet_entries() -> tuple[ZooEntry, ...]:
    """Return one entry a family; its weights are those that the importer draws for the same cfg."""
    return tuple(
        ZooEntry(
            name=family.name,
            description=family.description,
            parameters=family.parameters,
            definition=partial(_definition, family),
            resolution=family.resolution,
            multiple=family.multiple,
            biases=partial(_biases, family),
            calibration_resolution=CALIBRATION_RESOLUTION,
        )
        for family in FAMILIES
    )


def _definition(family: Family, resolution: int) -> onnx.ModelProto:
    network = build_network(family.sections(), family.name, resolution)
    return skeleton(network, family.name)


def _biases(family: Family, _: onnx.ModelProto) -> Mapping[str, NDArray[np.float32]]:
    # Biases of heads do not depend on the resolution, so those of the default one fit all.
    return objectness_biases(build_network(family.sections(), family.name))
