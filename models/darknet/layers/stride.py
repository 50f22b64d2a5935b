"""How many pixels of the image become one: what the resolution of a detector must be a multiple of."""

from models.darknet.layers.layer import IMAGE, Layer, Network
from models.darknet.layers.parameters import Convolution, MaxPool, Region, Reorg, Upsample, Yolo


def network_stride(network: Network) -> int:
    """Return the stride of the coarsest layer; 1 without heads: only their cells are places."""
    if not any(isinstance(layer.parameters, Yolo | Region) for layer in network.layers):
        return 1
    strides = {IMAGE: 1.0}
    for layer in network.layers:
        strides[layer.index] = strides[layer.inputs[0]] * _own(layer)
    return max(1, round(max(strides.values())))


def resolution_fault(network: Network, resolution: int) -> str:
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


def _own(layer: Layer) -> float:
    match layer.parameters:
        case Convolution(stride=stride) | MaxPool(stride=stride):
            return max(stride)
        case Reorg(stride=stride):
            return stride
        case Upsample(stride=stride):
            return 1 / stride
        case _:
            return 1
