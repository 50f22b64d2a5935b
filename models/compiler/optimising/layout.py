"""The layout of images: plain, or blocked (blocked_tensors.py), in which convolutions are computed.

Each value gets its layout from the node that produces it:

- Convolutions whose weights are constant are blocked, and so are pools where their input is already or a
  convolution reads their result. With less than a block of channels a convolution reads a plain image.
- Operators on elements, Concat and Split do the same to blocks as to planes: they run on blocked tensors
  as they are. A gate, the factor per channel of squeeze-excite, becomes the weights of a convolution of one
  pixel a channel; so do scale and shift of a batch norm. A softmax along channels that are one block
  has its numbers side by side. What repeats or interpolates pixels is blocked, but for few channels,
  which would take the memory and the time of a block. Where nothing reads repeated pixels in blocks, what
  they are of is turned, which is smaller; interpolating them is twice as fast in blocks.
- All others read and produce plain tensors. A tensor is turned once, before the first node that needs it.

Where channels are not blocks, others fill them (filled_channels.py): copies, or zeros, which a blocked
convolution makes with weights of zero and reads with weights of zero. On the latter nothing runs that makes
infinities of numbers.

An addition and an activation behind a convolution become part of it (blocked_convolutions.py). So an
addition is rounded once less. Everything else is the same operator on the same numbers.
"""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from models.compiler.optimising.blocked_convolutions import BlockedConvolutions
from models.compiler.optimising.blocked_tensors import CHANNEL_AXIS, RANK, TO_PIXELS
from models.network.catalogue import traits_of
from models.network.fields import Array
from models.network.names import NCHWC, PLAIN_DOMAINS, Op, named
from models.network.node import Node
from models.network.operators.normalisation import BatchNorm
from models.network.operators.reading import Operator, Pooling, Reduction, Resize, Softmax
from models.runtime.kernels import ON_FILLED_BLOCKS, kernel_of

#: How blocked interpolation says where pixels lie.
_COORDINATES = ("align_corners", "asymmetric", "half_pixel")
#: From here on Resize takes its scales third, and says how pixels become others.
_WITH_MODES = 11
_SIZES = 3


class Layout(BlockedConvolutions):
    """Gives each image of a graph its layout."""

    def replaced(self, node: Node) -> list[Node] | None:
        nodes = self.fused(node)
        if nodes is None and node.domain in PLAIN_DOMAINS and node.inputs and node.outputs:
            nodes = self._in_blocks(node)
        if nodes is not None:
            return nodes
        before = list(self.plain(node.reads))
        return [*before, node] if before else None

    def _in_blocks(self, node: Node) -> list[Node] | None:
        """Return what ``node`` is on blocked tensors; None: it is on plain ones."""
        if traits_of(node.operator).computes(Op.Conv):
            return self.convolution(node)
        operator = self.operator(node)
        if isinstance(operator, Pooling | Reduction):
            return self._pool(node)
        if self._may_move(node):
            return self._moved(node)
        if isinstance(operator, Softmax):
            return self._softmax(node, operator)
        if node.operator == Op.Mul:
            return self.gate(node)
        return self._of_blocked(node, operator) if node.inputs[0] in self.blocked else None

    def _of_blocked(self, node: Node, operator: Operator | None) -> list[Node] | None:
        """Return what ``node`` is, whose first input is blocked; None: it reads plain tensors."""
        if node.operator == Op.BatchNormalization:
            return self.scaled(node)
        if isinstance(operator, Resize):
            return self._resized(node, operator)
        if node.operator == Op.Transpose and node.attributes.get("perm") == TO_PIXELS:
            return [self.leave(node.inputs[0], node.output, channels_last=1)]
        return None

    def _pool(self, node: Node) -> list[Node] | None:
        x, y = node.inputs[0], node.output
        blocked = named(NCHWC, node.operator)
        is_ready = x in self.blocked or self.fills_blocks(x)
        is_static = is_ready and self.is_image(y) and len(node.outputs) == 1
        dilations = node.attributes.get("dilations", [])
        is_dilated = node.operator == Op.AveragePool and set(dilations) > {1}
        if kernel_of(blocked) is None or not is_static or is_dilated:
            return None
        if x not in self.blocked and (x in self.filled or not self._convolves(y)):
            return None
        before = self.enter(x)
        inside = self.node(blocked, [self.blocked[x]], [self.new(y)], node.name, **node.attributes)
        return [*before, *self.produced([y], inside)]

    def _convolves(self, name: str) -> bool:
        """Return whether a convolution reads ``name`` in blocks."""
        return any(
            traits_of(node.operator).computes(Op.Conv) and self._reads_blocks(node)
            for node in self.readers[name]
        )

    def _reads_blocks(self, convolution: Node) -> bool:
        return self.order(convolution) is not None and not self.reads_plain(convolution)

    # What does the same on blocked tensors.

    def _operands(self, node: Node) -> list[str]:
        # The second input of a Split says how large its parts are.
        read = node.inputs[:1] if node.operator == Op.Split else node.inputs
        return [name for name in read if name and not self.is_single(name)]

    def _may_move(self, node: Node) -> bool:
        """Return whether ``node`` does the same on blocked tensors, of which it has some."""
        operands = self._operands(node)
        blocked = [name for name in operands if name in self.blocked]
        images = (*operands, *node.outputs)
        if not blocked or not all(map(self.is_image, images)):
            return False
        are_blocks = all(map(self.fills_blocks, images))
        is_ready = len(blocked) == len(operands)
        is_split = node.operator == Op.Split
        if is_split or node.operator == Op.Concat:
            on_channels = node.attributes.get("axis", 0) in (CHANNEL_AXIS, CHANNEL_AXIS - RANK)
            return on_channels and are_blocks and is_ready
        shape = self.shape(node.output)
        is_same = all(self.shape(name) == shape for name in operands)
        record = traits_of(node.operator)
        if record.function is None or len(node.outputs) != 1 or not is_same:
            return False
        if node.output in self.filled:
            return is_ready
        is_finite = record.name in ON_FILLED_BLOCKS or node.output in self.activations
        return (are_blocks or (is_ready and is_finite)) and self._has_fewer_reorders(node, operands)

    def _has_fewer_reorders(self, node: Node, operands: Sequence[str]) -> bool:
        """Return whether ``node`` needs no more reorders on blocked tensors than on plain ones.

        All that it reads (``operands``) and makes has one size.
        """
        in_blocks, in_planes = self._layouts_of_readers(node.output)
        enters = sum(name not in self.blocked for name in operands)
        leaves = sum(name in self._unread for name in operands)
        return enters + in_planes <= leaves + in_blocks

    def _layouts_of_readers(self, name: str) -> tuple[bool, bool]:
        """Return whether something reads ``name`` in blocks alone, and something in planes alone.

        Of what does the same to both, what reads its result counts.
        """
        values, in_blocks, in_planes = [name], False, False
        for value in values:
            in_planes |= value in self.outputs
            for node in self.readers[value]:
                if traits_of(node.operator).computes(Op.Conv):
                    is_blocked = value == node.inputs[0] and self._reads_blocks(node)
                    in_blocks, in_planes = in_blocks or is_blocked, in_planes or not is_blocked
                elif not traits_of(node.operator).function:
                    in_planes |= not self._accepts_both(node, value)
                elif self.shape(node.output) == self.shape(value):
                    values += {node.output}.difference(values)
        return in_blocks, in_planes

    def _accepts_both(self, node: Node, name: str) -> bool:
        """Return whether ``node`` reads ``name`` in either layout."""
        operator = self.operator(node)
        is_split = node.operator == Op.Split
        if is_split or node.operator == Op.Concat:
            return self.fills_blocks(name)
        return isinstance(operator, Pooling | Reduction | Resize | BatchNorm)

    def _moved(self, node: Node) -> list[Node]:
        """Return ``node`` on blocked tensors."""
        before = [turned for name in self._operands(node) for turned in self.enter(name)]
        read = [self.blocked.get(name, name) for name in node.inputs]
        inside = node.replaced(read, [self.new(name) for name in node.outputs])
        return [*before, *self.produced(node.outputs, inside)]

    def _softmax(self, node: Node, operator: Softmax) -> list[Node] | None:
        """Return a softmax along channels that are one block along the rows of a blocked tensor."""
        x, y = node.inputs[0], node.output
        if not self.is_image(x):
            return None
        batch, channels, height, width = self.shape(x)
        along_channels = (operator.length, operator.inner) == (channels, height * width)
        if not along_channels or channels != self._block:
            return None
        before = self.enter(x)
        source, blocked = self.blocked[x], self.new(y)
        rows, result = (self.fresh(f"{y}/{role}") for role in ("rows", "sums"))
        pixels = Array(dtype="float32", shape=(batch, height, width, channels))
        self.values |= dict.fromkeys((rows, result), pixels)
        return [
            *before,
            self.reshape(source, rows, pixels.shape),
            self.node(node.operator, [rows], [result], node.name, axis=RANK - 1),
            *self.produced([y], self.reshape(result, blocked, self.shape(x))),
        ]

    # Images that become larger.

    def _resized(self, node: Node, operator: Resize) -> list[Node] | None:
        """Return a blocked image made larger by integers, its pixels repeated or interpolated."""
        x, y = node.inputs[0], node.output
        is_thin = 2 * self.channels(x) <= self._block
        if not self.is_image(y) or is_thin:
            return None
        if node.attributes.get("mode", "nearest") == "nearest":
            in_blocks, in_planes = self._layouts_of_readers(y)
            if in_planes and not in_blocks:
                return None
            factors, coordinates, mode = operator.factors, "asymmetric", "nearest"
        else:
            (factors, coordinates), mode = self._interpolated(node, operator), "linear"
        if factors is None or factors[:2] != (1, 1):
            return None
        inside = self.node(
            Op.BlockedUpsample,
            [self.blocked[x]],
            [self.new(y)],
            node.name,
            coordinate_transformation_mode=coordinates,
            mode=mode,
            scales=list(factors),
        )
        return self.produced([y], inside)

    def _interpolated(self, node: Node, operator: Resize) -> tuple[tuple[int, ...] | None, str]:
        """Return by which integers lengths grow, if by any, and where pixels lie."""
        is_old = node.operator == Op.Upsample or self.opsets[""] < _WITH_MODES
        default = "asymmetric" if is_old else "half_pixel"
        coordinates = node.attributes.get("coordinate_transformation_mode", default)
        scales = None if node.inputs[_SIZES:] else self.numbers(node.inputs[1 if is_old else 2])
        is_linear = node.attributes["mode"] == "linear" and coordinates in _COORDINATES
        return (_factors(operator, scales) if is_linear else None), coordinates


def _factors(operator: Resize, scales: NDArray[Any] | None) -> tuple[int, ...] | None:
    """Return by which integers lengths grow; ``scales``: what a node says of that."""
    pairs = list(zip(operator.y.shape, operator.x.shape, strict=True))
    factors = tuple(result // length for result, length in pairs)
    if any(result % length for result, length in pairs):
        return None
    return factors if scales is None or tuple(scales.tolist()) == factors else None
