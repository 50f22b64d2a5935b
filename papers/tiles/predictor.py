"""How much memory a configuration takes: seed 002's Algorithms 1 and 2, and the same of our executor.

Both are the most that any tile of any layer needs, and a constant: the bias. Darknet unrolls the input of a
convolution (scratch); ONNX Runtime's blocked convolutions do not, but groups read and write whole tensors
that are in memory meanwhile, which the paper leaves to the bias.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from papers.tiles.configuration import FusedGroup, TileConfiguration
from papers.tiles.geometry import GroupBoxes, up_tile
from papers.tiles.layers import FusedLayer
from pipeline.program.boxes.box import RowBox

_ELEMENT_BYTES = 4
#: What the paper found for Darknet on a Raspberry Pi 3.
PAPER_BIAS_BYTES = 31 << 20

#: Tells the bytes of a group without the bias.
GroupBytes = Callable[[tuple[FusedLayer, ...], FusedGroup], int]


def paper_group_bytes(layers: tuple[FusedLayer, ...], group: FusedGroup, inputs: int = 2) -> int:
    """Return Algorithm 1's maximum: scratch, output and ``inputs`` times the input of a layer's tile.

    Tiles are those of upTile, whatever they reuse: the paper found reuse to make predictions worse.
    """
    alone = replace(group, tiling=replace(group.tiling, reuse="none"))
    most = 0
    for tile in GroupBoxes(layers, alone).made:
        for layer, boxes in zip(layers[group.first : group.end], tile, strict=True):
            most = max([most, *(_layer_elements(layer, box, inputs) for box in boxes)])
    return _ELEMENT_BYTES * most


def _layer_elements(layer: FusedLayer, box: RowBox, inputs: int) -> int:
    channels = layer.source[0]
    scratch = 0
    if layer.weights:
        rows, columns = layer.kernel
        scratch = box.pixels * channels * rows * columns // layer.stride
    return scratch + box.pixels * layer.output[0] + inputs * channels * up_tile(layer, box).pixels


def group_bytes(layers: tuple[FusedLayer, ...], group: FusedGroup) -> int:
    """Return the arena that our executor needs for a group.

    A whole group: input and output of a layer. Tiles: what a layer reads as it was made and as it was put
    together with padding, what it makes, and what tiles keep for others; beside that the whole input and
    output of the group.
    """
    own = layers[group.first : group.end]
    if group.tiling.is_whole:
        return max(_bytes(layer.source) + _bytes(layer.output) for layer in own)
    boxes = GroupBoxes(layers, group)
    before = [0, *boxes.made_bytes]
    needed = zip(before, boxes.own_bytes, boxes.made_bytes, strict=False)
    return max(map(sum, needed)) + boxes.kept_bytes + _bytes(own[0].source) + _bytes(own[-1].output)


def weight_bytes(layers: tuple[FusedLayer, ...], group: FusedGroup) -> int:
    """Return the weights that must be there at once: all of a fused group; whole layers stream theirs."""
    own = layers[group.first : group.end]
    return 0 if group.tiling.is_whole else _ELEMENT_BYTES * sum(layer.weights for layer in own)


def predict(
    layers: tuple[FusedLayer, ...],
    configuration: TileConfiguration,
    bias_bytes: int,
    of_group: GroupBytes = group_bytes,
) -> int:
    """Return Algorithm 2's maximum over all groups, and the bias."""
    return max(of_group(layers, group) for group in configuration.groups) + bias_bytes


def paper_predict(
    layers: tuple[FusedLayer, ...],
    configuration: TileConfiguration,
    bias_bytes: int = PAPER_BIAS_BYTES,
    inputs: int = 2,
) -> int:
    """Return what the paper predicts for Darknet; as printed, each input counts twice."""
    return predict(layers, configuration, bias_bytes, partial(paper_group_bytes, inputs=inputs))


def _bytes(shape: tuple[int, int, int]) -> int:
    channels, height, width = shape
    return _ELEMENT_BYTES * channels * height * width
