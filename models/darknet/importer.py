"""From a cfg, and a .weights file or a seed, to an ONNX file."""

from collections.abc import Sequence
from pathlib import Path

from models.darknet.cfg.text import read_cfg
from models.darknet.errors import DarknetError
from models.darknet.layers.layer import IMAGE, DarknetLayer, DarknetNetwork
from models.darknet.layers.network import build_network
from models.darknet.layers.parameters import (
    ConvolutionParameters,
    MaxPoolParameters,
    RegionParameters,
    ReorgParameters,
    SoftmaxParameters,
    UpsampleParameters,
    YoloParameters,
)
from models.darknet.metadata import HEADER
from models.darknet.nodes.skeleton import skeleton
from models.darknet.seeded import random_weights
from models.darknet.weights import read_weights
from models.graphs.metadata import write_metadata
from models.graphs.writer import check_place, write_onnx
from models.progress import Progress, silent


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
        progress: is told of each step.

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
    """Return how many classes the outputs tell apart."""
    last = network.layers[network.outputs[-1]]
    match last.parameters:
        case YoloParameters(classes=classes) | RegionParameters(classes=classes):
            return classes
        case SoftmaxParameters(groups=groups):
            return last.shape[0] // groups
        case _:
            return last.shape[0] * last.shape[1] * last.shape[2]


def network_stride(network: DarknetNetwork) -> int:
    """Return the stride of the coarsest layer; 1 without heads: only their cells are places."""
    if not any(
        isinstance(layer.parameters, YoloParameters | RegionParameters) for layer in network.layers
    ):
        return 1
    strides = {IMAGE: 1.0}
    for layer in network.layers:
        strides[layer.index] = strides[layer.inputs[0]] * _own(layer)
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


def _own(layer: DarknetLayer) -> float:
    match layer.parameters:
        case ConvolutionParameters(stride=stride) | MaxPoolParameters(stride=stride):
            return max(stride)
        case ReorgParameters(stride=stride):
            return stride
        case UpsampleParameters(stride=stride):
            return 1 / stride
        case _:
            return 1
