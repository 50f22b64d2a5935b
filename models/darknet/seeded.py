"""Random weights for a network, the same at every resolution where that is possible."""

import contextlib

import numpy as np
from numpy.typing import NDArray

from models.darknet.errors import DarknetError
from models.darknet.layers.layer import DarknetNetwork
from models.darknet.layers.network import build_network
from models.darknet.layers.parameters import RegionParameters, YoloParameters
from models.darknet.nodes.skeleton import skeleton
from models.initial import initialise_small
from models.progress import Progress, silent

# Pixels: all strides of detectors divide it, and calibrating at it is quick.
CALIBRATION_RESOLUTION = 256

# A random detector is sure of nothing nearly everywhere: the logistic of these is 0.05 and 0.12.
_OBJECTNESS = -3.0
_CLASS = -2.0


def random_weights(
    network: DarknetNetwork, seed: int = 0, progress: Progress = silent
) -> dict[str, NDArray[np.float32]]:
    """Return an array for each of the network's, float32, drawn from ``seed`` and calibrated.

    They are drawn for another resolution if their shapes are the same there: then networks that
    differ in nothing but the resolution have the same weights.
    """
    small = None
    with contextlib.suppress(DarknetError):  # too small for its strides
        small = build_network(network.sections, resolution=CALIBRATION_RESOLUTION)
    return initialise_small(
        skeleton(network, "network"),
        skeleton(small, "network") if small else None,
        seed,
        objectness_biases(network),
        progress,
    )


def objectness_biases(network: DarknetNetwork) -> dict[str, NDArray[np.float32]]:
    """Return biases of the layers before detection layers: of objectness and classes."""
    biases = {}
    for layer in network.layers:
        before = network.layers[layer.inputs[0]] if layer.inputs[0] >= 0 else None
        if not isinstance(layer.parameters, YoloParameters | RegionParameters) or before is None:
            continue
        for array in before.arrays:
            if array.name.endswith(".biases"):
                values = np.zeros(array.shape, np.float32)
                anchors = values.reshape(-1, 5 + layer.parameters.classes)
                anchors[:, 4], anchors[:, 5:] = _OBJECTNESS, _CLASS
                biases[array.name] = values
    return biases
