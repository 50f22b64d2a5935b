"""What layers make and need for each tile, and how much memory that takes: seed 002's, and ours.

Both are the most that any tile of any layer needs, and a constant: the bias. Darknet unrolls the input of a
convolution (scratch); ONNX Runtime's blocked convolutions do not, but groups read and write whole tensors
that are in memory meanwhile, which the paper leaves to the bias.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from models.network.macs import macs
from papers.tiles.fused_groups import FusedGroup, FusedLayer, TileConfiguration
from papers.tiles.tiled_regions import (
    KeptTile,
    hull,
    kept_between,
    placed_boxes,
    through,
    tiles_of,
)
from pipeline.program.boxes.box import Interval, RowBox, common, without

# What each layer of a fused group makes and needs for each tile (``upTile``, seed 002 Section 2.1).

_ELEMENT_BYTES = 4


def up_tile(layer: FusedLayer, tile: RowBox) -> RowBox:
    """Return the box of the input that ``tile`` of the output of ``layer`` is made of, without padding."""
    _, height, width = layer.source
    inside = common(
        through(tile, layer.down, layer.across), RowBox(Interval(0, height), Interval(0, width))
    )
    return inside or RowBox(Interval(0, 0), Interval(0, 0))


def grid(group: FusedGroup, layers: tuple[FusedLayer, ...]) -> list[RowBox]:
    """Return the tiles of the group's output in the order in which they run."""
    _, height, width = layers[group.end - 1].output
    return tiles_of(height, width, group.tiling.boxes_of(height, width))


@dataclass(frozen=True)
class GroupBoxes:
    """``group`` of ``layers``, tile by tile."""

    layers: tuple[FusedLayer, ...]
    group: FusedGroup

    @cached_property
    def made(self) -> list[list[list[RowBox]]]:
        """What each tile makes at each layer: nothing, or boxes apart from each other."""
        reuse = self.group.tiling.reuse != "none"
        done: list[list[RowBox]] = [[] for _ in self._own]
        found = []
        for tile in grid(self.group, self.layers):
            boxes: list[list[RowBox]] = [[] for _ in self._own]
            wanted: RowBox | None = tile
            for number in reversed(range(len(self._own))):
                if wanted is not None:
                    boxes[number] = without(wanted, done[number]) if reuse else [wanted]
                    done[number] += boxes[number] if reuse else []
                    wanted = hull(up_tile(self._own[number], box) for box in boxes[number])
            found.append(boxes)
        return found

    @cached_property
    def macs(self) -> int:
        """Multiplications and additions of all tiles."""
        return sum(
            macs(layer.weights, box.pixels)
            for tile in self.made
            for layer, boxes in zip(self._own, tile, strict=True)
            for box in boxes
        )

    @cached_property
    def kept_bytes(self) -> int:
        """What tiles keep for each other, at most."""
        kept: list[KeptTile] = []
        for number in range(len(self._own) - 1 if self.group.tiling.reuse != "none" else 0):
            after = self._own[number + 1]
            wanted = [[up_tile(after, box) for box in tile[number + 1]] for tile in self.made]
            kept += kept_between(number, [tile[number] for tile in self.made], wanted)
        sizes = [
            _ELEMENT_BYTES * self._own[item.row_value].output[0] * item.box.pixels for item in kept
        ]
        return placed_boxes(kept, sizes)[1]

    @cached_property
    def calls(self) -> int:
        """Kernels that run, of all tiles."""
        return sum(len(boxes) for tile in self.made for boxes in tile)

    @cached_property
    def made_bytes(self) -> list[int]:
        """Of each layer, what the most of its output takes that a tile makes, box by box."""
        return [
            _most_bytes(layer.output[0], [tile[number] for tile in self.made])
            for number, layer in enumerate(self._own)
        ]

    @cached_property
    def own_bytes(self) -> list[int]:
        """Of each layer, what its input takes where it is put together, with padding; else 0."""
        return [
            0 if self._is_direct(number, boxes) else _most_bytes(self._own[number].source[0], boxes)
            for number, boxes in enumerate(self._needed)
        ]

    @cached_property
    def copied_bytes(self) -> int:
        """What is copied between kernels: inputs put together, and results to where they lie whole."""
        copied = sum(box.pixels * self._own[-1].output[0] for tile in self.made for box in tile[-1])
        for number, boxes in enumerate(self._needed):
            if not self._is_direct(number, boxes):
                pixels = sum(box.pixels for tile in boxes for box in tile)
                copied += pixels * self._own[number].source[0]
        return _ELEMENT_BYTES * copied

    @cached_property
    def _needed(self) -> list[list[list[RowBox]]]:
        """For each layer and tile, the boxes of its input, padding included."""
        return [
            [[through(box, layer.down, layer.across) for box in tile[number]] for tile in self.made]
            for number, layer in enumerate(self._own)
        ]

    def _is_direct(self, number: int, needed: list[list[RowBox]]) -> bool:
        """Return whether a layer reads, in every tile, just what the one before makes for it."""
        return number > 0 and all(
            not boxes or boxes == tile[number - 1]
            for boxes, tile in zip(needed, self.made, strict=True)
        )

    @property
    def _own(self) -> tuple[FusedLayer, ...]:
        return self.layers[self.group.first : self.group.end]


def _most_bytes(channels: int, tiles: Sequence[Sequence[RowBox]]) -> int:
    """Return what boxes of so many channels take, the largest first ones, second ones, ... of all tiles."""
    return (
        _ELEMENT_BYTES
        * channels
        * sum(
            max(boxes[slot].pixels for boxes in tiles if len(boxes) > slot)
            for slot in range(max(map(len, tiles)))
        )
    )


def whole_macs(layers: tuple[FusedLayer, ...]) -> int:
    """Return the multiplications and additions of ``layers``, each output made once."""
    return sum(macs(layer.weights, layer.output[1] * layer.output[2]) for layer in layers)


# How much memory a configuration takes: seed 002's Algorithms 1 and 2, and the same of our executor.

#: What the paper found for Darknet on a Raspberry Pi 3.
PAPER_BIAS_BYTES = 31 << 20

#: Returns the bytes of a group without the bias.
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
