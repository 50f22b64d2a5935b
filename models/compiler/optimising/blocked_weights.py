"""Weights of blocked convolutions: channels filled up to whole blocks, in the order that the kernels read.

ONNX Runtime's blocked convolution reads weights [O, I, H, W] in one of two orders (MLAS calls them
OIHWBiBo and OIHWBo), where b is the block: [O/b, I/b, H, W, b of I, b of O], or, where it reads fewer
channels than a block (an image, or one channel of each group), [O/b, I, H, W, b of O].

Weights lie in files: one layer at a time is mapped, reordered and written.
"""

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from models.graphs.rewriter import Rewriter

Floats = NDArray[np.float32]
#: A weight of a copy, of one of its original.
_FAINT = np.float32(2.0**-80)


class BlockFill(Enum):
    """What the channels after the last one of a value are, up to a whole block."""

    ZEROS = "zeros"
    COPIES = "copies"


@dataclass(frozen=True)
class WeightOrder:
    """The channels of weights: ``features`` and ``depth`` with those that fill; ``b_of_inputs``: OIHWBiBo.

    ``depth`` is of one group. ``outputs``, ``inputs``: how they are filled.
    """

    features: int
    depth: int
    b_of_inputs: bool
    outputs: BlockFill
    inputs: BlockFill


class BlockedWeights:
    """Adds reordered weights to the constants of a pass; ``block``: channels in a block."""

    def __init__(self, rewriter: Rewriter, block: int) -> None:
        self._rewriter = rewriter
        self._block = block
        self._count = 0
        self._names: dict[tuple[str, WeightOrder | int, BlockFill], str] = {}

    def weights(self, name: str, order: WeightOrder) -> str:
        """Return the name of the weights ``name``, [O, I, H, W] in float32, in ``order``."""
        key = (name, order, order.outputs)
        if key not in self._names:
            deeper = _deeper(self.array(name), order)
            self._names[key] = self.write(name, self._reordered(deeper, order))
        return self._names[key]

    def longer(self, name: str, features: int, fill: BlockFill) -> str:
        """Return the name of the constant ``name`` with its first axis, channels, filled up."""
        if len(self.array(name)) == features:
            return name
        key = (name, features, fill)
        if key not in self._names:
            self._names[key] = self.write(name, _longer(self.array(name), features, fill))
        return self._names[key]

    def array(self, name: str) -> Floats:
        """Return a constant."""
        return self._rewriter.constants[name]

    def write(self, name: str, array: Floats) -> str:
        """Return what ``array``, made of the constant or value ``name``, is called."""
        title = f"{name}/blocked{self._count}"
        self._count += 1
        return self._rewriter.constant(title, array)

    def _reordered(self, weights: Floats, order: WeightOrder) -> Floats:
        block = self._block
        features, depth, *kernel = order.features, order.depth, *weights.shape[2:]
        shape = (features, depth, *kernel)
        result = np.empty(shape, np.float32)
        step = block if order.b_of_inputs else 1
        blocks = result.reshape(features // block, depth // step, *kernel, step, block)
        for index in range(0, features, block):  # a block of rows at a time: no second whole copy
            rows = np.arange(index, index + block)
            some = _rows(weights, rows, order.outputs)
            split = some.reshape(block, depth // step, step, *kernel)
            blocks[index // block] = np.moveaxis(split, (0, 2), (-1, -2))
        return result


def _rows(weights: Floats, rows: NDArray[np.intp], fill: BlockFill) -> Floats:
    """Return ``rows`` of ``weights``; those after the last one fill."""
    count = len(weights)
    if rows[-1] < count:
        return weights[rows[0] : rows[-1] + 1]
    some = weights[rows % count]
    if fill is BlockFill.ZEROS:
        some[rows >= count] = 0
    return some


def _deeper(weights: Floats, order: WeightOrder) -> Floats:
    """Return ``weights`` with those of inputs that fill: none, or of copies faint ones."""
    depth = weights.shape[1]
    more = order.depth - depth
    if not more:
        return weights
    copies = weights[:, np.arange(more) % depth]
    faint = copies * (_FAINT if order.inputs is BlockFill.COPIES else np.float32(0))
    if order.inputs is BlockFill.ZEROS:
        faint = np.zeros_like(copies)  # of an infinite weight, too
    return np.concatenate([weights, faint], axis=1)


def _longer(array: Floats, count: int, fill: BlockFill) -> Floats:
    longer = np.asarray(array[np.arange(count) % len(array)])
    if fill is BlockFill.ZEROS:
        longer[len(array) :] = 0
    return longer
