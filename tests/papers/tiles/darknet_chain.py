"""The first layers of a Darknet network as a chain, as seed 002 has them."""

from models.darknet.image_layers import ConvolutionOperation, MaxPoolOperation
from models.darknet.layers import DarknetNetwork
from models.network.windows import SAME, Window
from papers.tiles.fused_groups import FusedLayer, TileError


def darknet_layers(network: DarknetNetwork, count: int) -> tuple[FusedLayer, ...]:
    """Return the first ``count`` layers of a Darknet network as a chain.

    Raises:
        TileError: one is neither a convolution nor a maximum, or reads something else than the one before.
    """
    fused_layers: list[FusedLayer] = []
    shape = (network.channels, network.height, network.width)
    for layer in network.layers[:count]:
        name = f"layer {layer.index} ({layer.kind})"
        if layer.inputs != (layer.index - 1,):
            raise TileError(f"{name} does not read the layer before it, and that alone")
        weights, down, across = 0, SAME, SAME
        match layer.operation:
            case ConvolutionOperation() as conv:
                weights = next(a.size for a in layer.arrays if a.name.endswith(".weights"))
                down, across = _windows(conv.size, conv.stride, (conv.padding, conv.padding))
            case MaxPoolOperation(size=size, stride=stride, pads=(left, top, _, _)):
                down, across = _windows(size, stride, (left, top))
            case _:
                raise TileError(f"{name} is neither a convolution nor a maximum")
        fused_layers.append(FusedLayer(name, shape, layer.shape, down, across, weights))
        shape = layer.shape
    return tuple(fused_layers)


def _windows(size: int, stride: tuple[int, int], before: tuple[int, int]) -> tuple[Window, Window]:
    """Return the windows down and across of a Darknet layer, whose numbers are across, down."""
    across, down = (
        Window(size, step, before=pad) for step, pad in zip(stride, before, strict=True)
    )
    return down, across
