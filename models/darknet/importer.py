"""From a cfg, and a .weights file or a seed, to an ONNX file."""

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.darknet.cfg import DarknetError, read_cfg
from models.darknet.layers import IMAGE, DarknetNetwork
from models.darknet.network import build_network
from models.darknet.skeleton import HEADER, skeleton
from models.darknet.vector_layers import HeadOperation, SoftmaxOperation
from models.darknet.weights import read_weights
from models.graphs.metadata import write_metadata
from models.graphs.onnx_writer import check_place, write_onnx
from models.initial import initialise_small
from models.progress import Progress, silent

# Random weights for a network, the same at every resolution where that is possible.

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
        if not isinstance(layer.operation, HeadOperation) or before is None:
            continue
        for array in before.arrays:
            if array.name.endswith(".biases"):
                values = np.zeros(array.shape, np.float32)
                anchors = values.reshape(-1, 5 + layer.operation.classes)
                anchors[:, 4], anchors[:, 5:] = _OBJECTNESS, _CLASS
                biases[array.name] = values
    return biases


# The import of a network.


def import_network(
    cfg: Path,
    weights: Path | None,
    output: Path,
    resolution: int | None = None,
    labels: Sequence[str] = (),
    seed: int = 0,
    *,
    progress: Progress = silent,
) -> DarknetNetwork:
    """Write the network in ``cfg`` to ``output`` as ONNX; return it.

    Args:
        cfg: a cfg file of Darknet.
        weights: its .weights file, which is mapped, never held; without it, they are random.
        output: the ONNX file.
        resolution: width and height of the input in pixels; those of the cfg if None.
        labels: one for each class, or none.
        seed: of the random weights.
        progress: is called at each step.

    Raises:
        DarknetError: what is wrong with the cfg, the resolution, the weights or the number of labels.
        ModelError: ``output`` cannot be written.
    """
    if any(given and output.resolve() == given.resolve() for given in (cfg, weights)):
        raise DarknetError(f"{output}: would replace what is imported")
    progress("read the network")
    where = str(cfg) if resolution is None else f"{cfg} at {resolution}x{resolution}"
    network = build_network(read_cfg(cfg), where, resolution)
    fault = "" if resolution is None else resolution_fault(network, resolution)
    if fault:
        raise DarknetError(f"{cfg}: {fault}")
    if labels and len(labels) != class_count(network):
        raise DarknetError(f"{cfg}: {class_count(network)} classes, but {len(labels)} labels")
    check_place(output)
    # A name that is no UTF-8 on disk would be none in the file.
    model = skeleton(network, cfg.stem.encode("utf-8", "replace").decode(), labels)
    if weights is None:
        arrays = random_weights(network, seed, progress)
        progress("write")
        write_onnx(model, arrays, output)
        return network
    progress("read the weights")
    header, arrays = read_weights(weights, network)
    progress("write")
    write_metadata(model, {HEADER: header.model_dump()})
    write_onnx(model, arrays, output)
    return network


def class_count(network: DarknetNetwork) -> int:
    """Return how many classes the outputs distinguish."""
    last = network.layers[network.outputs[-1]]
    match last.operation:
        case HeadOperation(classes=classes):
            return classes
        case SoftmaxOperation(groups=groups):
            return last.shape[0] // groups
        case _:
            return math.prod(last.shape)


def network_stride(network: DarknetNetwork) -> int:
    """Return the stride of the coarsest layer; 1 without heads: only their cells are places."""
    if not any(isinstance(layer.operation, HeadOperation) for layer in network.layers):
        return 1
    strides = {IMAGE: 1.0}
    for layer in network.layers:
        strides[layer.index] = strides[layer.inputs[0]] * layer.operation.shrinks
    return max(1, round(max(strides.values())))


def resolution_fault(network: DarknetNetwork, resolution: int) -> str:
    """Return why ``resolution`` does not fit ``network``, with the nearest two that do, or nothing."""
    stride = network_stride(network)
    below = resolution // stride * stride
    if below == resolution:
        return ""
    nearest = [str(side) for side in (below, below + stride) if side]
    return (
        f"{resolution} pixels are not a multiple of the network's stride, {stride}: "
        f"the nearest that are: {' and '.join(nearest)}"
    )
