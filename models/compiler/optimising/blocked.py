"""Keep tensors in the blocked layout between convolutions.

ONNX Runtime computes convolutions on channels in blocks (NCHWc), and turns tensors back to NCHW for every
operator that has no blocked kernel: a Mish or a residual addition between two convolutions costs two
reorders. Operators that treat every element alike do not care about the layout, and channels that divide
by the block join and end as they do in NCHW; so these run on the blocked tensor as it is. A gate, the
factor per channel of squeeze-excite, becomes the weights of a convolution of one pixel a channel. A softmax
along channels that are one block has its numbers side by side in that layout. An addition and an activation
behind a convolution become part of it.

Two passes beside that: images of few channels are made larger as they are, not in blocks, and a softmax
along another axis than the last one is turned.

Equal results to what ONNX Runtime made: the same operators on the same numbers, but for an addition inside
a convolution, which is rounded once less.
"""

import math
from collections.abc import Mapping

import onnx
from onnx import helper

from models.graphs.nodes import attributes, copied, new_node
from models.graphs.rewriting import Rewriter
from models.network.catalogue import traits_of
from models.network.fields import Array
from models.network.names import NCHWC, PLAIN_DOMAINS, Op, op_of
from models.network.operators.convolution import ADDEND
from models.network.operators.reading import Softmax
from models.runtime.kernels import kernel_of

_CHANNEL_AXIS = 1
#: Before, a softmax was along all axes from one on, which lie side by side.
_ALONG_AXIS = 13
_RANK = 4
#: As weights of a convolution of each channel by itself, however many there are.
_FACTORS = (-1, 1, 1, 1)
# From here on Resize takes its scales third, and says how places become places.
_OPSET = 11


def stay_blocked(model: onnx.ModelProto, values: Mapping[str, Array], block: int) -> None:
    """Rewrite ``model``, which ONNX Runtime optimised, in place.

    ``values``: those of known size, by name. ``block``: channels in a block; 1 where there is no blocked
    layout.
    """
    if block == 1 or all(op_of(node) != Op.ReorderOutput for node in model.graph.node):
        return
    _StayBlocked(model, values, block).run()


class _StayBlocked(Rewriter):
    """``_blocked[name]`` is the blocked tensor that equals ``name``; ``_instead``: what it is if gone."""

    def __init__(self, model: onnx.ModelProto, values: Mapping[str, Array], block: int) -> None:
        super().__init__(model, values)
        self._block = block
        self._blocked: dict[str, str] = {}
        self._instead: dict[str, str] = {}

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        node.input[:] = [self._instead.get(name, name) for name in node.input]
        if node.domain == NCHWC:
            if op_of(node) == Op.ReorderInput and not attributes(node).get("channels_last"):
                source = self._blocked.get(node.input[0])
                if source is not None:
                    self._instead[node.output[0]] = source
                    return []
            if op_of(node) == Op.ReorderOutput and not attributes(node).get("channels_last"):
                self._note(node.output[0], node.input[0])
            return None
        if self._may_move(node):
            return self._moved(node)
        if self._is_along_block(node):
            return self._along_block(node)
        gate = self._gate(node)
        return None if gate is None else self._gated(node, *gate)

    def _note(self, name: str, blocked: str) -> None:
        if self._in_blocks(name):
            self._blocked[name] = blocked

    def _may_move(self, node: onnx.NodeProto) -> bool:
        """Return whether ``node`` gives the same on blocked tensors, of which it has some at hand."""
        tensors = self._tensors(node)
        blocked = [name for name in tensors if name in self._blocked]
        if node.domain not in PLAIN_DOMAINS or not blocked:
            return False
        on_channels = attributes(node).get("axis", 0) in (_CHANNEL_AXIS, _CHANNEL_AXIS - 4)
        if op_of(node) == Op.Split:
            return on_channels and all(self._in_blocks(name) for name in node.output)
        if len([*filter(None, node.output)]) != 1:
            return False
        if op_of(node) == Op.Concat:
            return on_channels and len(blocked) == len(tensors)
        shape = self.shape(node.output[0])
        on_elements = traits_of(op_of(node)).function is not None
        return on_elements and all(self.shape(name) == shape for name in tensors)

    def _gate(self, node: onnx.NodeProto) -> tuple[str, str] | None:
        """Return a blocked input of ``node`` and the one that is a factor per channel of it; None: none."""
        if op_of(node) != Op.Mul:
            return None
        for name, gate in (tuple(node.input), tuple(reversed(node.input))):
            shape = self.shape(name)
            factors = (1, *shape[1:2], 1, 1)
            if name in self._blocked and shape[0] == 1 and self.shape(gate) == factors:
                return name, gate
        return None

    def _gated(self, node: onnx.NodeProto, name: str, gate: str) -> list[onnx.NodeProto]:
        """Return ``node`` as a convolution whose weights are the factors: the same bits.

        One pixel of whole blocks lies alike in both layouts. ONNX Runtime multiplies in blocks, too, but
        by 16 elements at a time: that is as slow as two reorders.
        """
        channels = self.shape(name)[_CHANNEL_AXIS]
        weights, blocked = map(self._fresh, (gate, node.output[0]))
        inside = new_node(
            Op.BlockedConv,
            [self._blocked[name], weights],
            [blocked],
            node.name,
            group=channels,
            kernel_shape=[1, 1],
        )
        before = self.reshape(self._blocked.get(gate, gate), weights, _FACTORS)
        return [before, inside, self._back(blocked, node.output[0])]

    def _is_along_block(self, node: onnx.NodeProto) -> bool:
        """Return whether ``node`` is a softmax along the channels of an image, and these are one block."""
        operator = self.operator(node) if _is_turned(node) else None
        if not isinstance(operator, Softmax) or len(operator.x.shape) != _RANK:
            return False
        _, channels, height, width = operator.x.shape
        along_channels = (operator.length, operator.inner) == (channels, height * width)
        return along_channels and channels == self._block

    def _along_block(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return ``node`` along the rows of a blocked tensor: the same bits."""
        shape = self.shape(node.input[0])
        before = self._reordered(node.input[0])
        source = self._blocked[node.input[0]]
        pixels = (shape[0], *shape[2:], self._block)
        apart, result, blocked = (
            self._fresh(f"{node.output[0]}{role}") for role in ("/rows", "/sums", "")
        )
        return [
            *before,
            self.reshape(source, apart, pixels),
            helper.make_node(node.op_type, [apart], [result], node.name, axis=len(pixels) - 1),
            self.reshape(result, blocked, shape),
            self._back(blocked, node.output[0]),
        ]

    def _in_blocks(self, name: str) -> bool:
        shape = self.shape(name)
        return len(shape) == 4 and shape[_CHANNEL_AXIS] % self._block == 0

    def _tensors(self, node: onnx.NodeProto) -> list[str]:
        # The second input of a Split says how large its parts are.
        read = node.input[:1] if op_of(node) == Op.Split else node.input
        return [name for name in read if name and not self.is_single(name)]

    def _moved(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return ``node`` on blocked tensors, and the reorders that give its results as they were."""
        before = [made for name in self._tensors(node) for made in self._reordered(name)]
        results = [self._fresh(name) for name in node.output]
        inside = copied(node, [self._blocked.get(name, name) for name in node.input], results)
        after = [self._back(*pair) for pair in zip(results, node.output, strict=True)]
        return [*before, inside, *after]

    def _back(self, blocked: str, name: str) -> onnx.NodeProto:
        """Return the reorder that makes ``name`` of ``blocked``, and note that they are the same."""
        self._note(name, blocked)
        channels = self.shape(name)[_CHANNEL_AXIS]
        return new_node(Op.ReorderOutput, [blocked], [name], channels=channels)

    def _reordered(self, name: str) -> list[onnx.NodeProto]:
        """Return the node that makes ``name`` blocked, none where it is already."""
        if name in self._blocked:
            return []
        self._blocked[name] = self._fresh(name)
        made = [self._blocked[name]]
        return [new_node(Op.ReorderInput, [name], made)]

    def _fresh(self, name: str) -> str:
        return self.fresh(f"{name}/blocked")


class FuseBlocked(Rewriter):
    """Takes additions and activations into the blocked convolutions before them.

    ``_open``: convolutions whose result one node alone reads, by that, in their order.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        self._open: dict[str, onnx.NodeProto] = {}

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Return the fused convolution here, not where it was: what is added may be made in between."""
        fused = None
        for name in reversed(self._open):
            fused = self._absorbed(self._open[name], node) if name in node.input else None
            if fused is not None:
                del self._open[name]
                break
        last = node if fused is None else fused
        if op_of(last) == Op.BlockedConv and self.uses[last.output[0]] == 1:
            self._open[last.output[0]] = last
        return None if fused is None else [fused]

    def _absorbed(self, convolution: onnx.NodeProto, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """Return ``convolution`` with ``node``, which reads its result, inside it; None: it cannot be."""
        if node.domain or "activation" in attributes(convolution):
            return None
        fused = copied(convolution, outputs=node.output)
        kernel = kernel_of(op_of(node))
        if kernel is not None and kernel.is_absorbed:
            given, defaults = attributes(node), traits_of(op_of(node)).attributes
            parameters = [given.get(name, default) for name, default in defaults.items()]
            fused.attribute.append(helper.make_attribute("activation", node.op_type))
            if parameters:
                fused.attribute.append(helper.make_attribute("activation_params", parameters))
            return fused
        others = [name for name in node.input if name != convolution.output[0]]
        is_sum = op_of(node) == Op.Add and len(others) == 1 and not self.is_single(others[0])
        if not is_sum or any(convolution.input[ADDEND:]):
            return None
        weights = list(convolution.input[:ADDEND])
        fused.input[:] = [*weights, *[""] * (ADDEND - len(weights)), others[0]]
        return fused


class AlongRows(Rewriter):
    """Lets each softmax of known size be along the last axis, between two transposes.

    Its kernel needs the numbers of a sum side by side: it exchanges its axis with the last one, in memory
    that no plan places, and back, element by element. Here the axis moves to the end and the others stay in
    order: a transpose of planes, which has a fast kernel, into memory of the arena. The rows are the same
    ones, and so are the bits. Of [1, 16, 4, 8400], the distances of a YOLOv8 head, it takes a fifth of the
    time. Before, ONNX Runtime would exchange the transposes with the softmax again.
    """

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        if not _is_turned(node) or self.versions.get("", 0) < _ALONG_AXIS:
            return None
        shape = self.shape(node.input[0])
        rank = len(shape)
        axis = attributes(node).get("axis", -1) % rank if rank else 0
        if math.prod(shape[axis + 1 :]) <= 1:
            return None
        there = [*(other for other in range(rank) if other != axis), axis]
        back = [there.index(place) for place in range(rank)]
        rows, result = (self.fresh(f"{node.output[0]}/{role}") for role in ("rows", "sums"))
        source, output = node.input[0], node.output[0]
        return [
            new_node(Op.Transpose, [source], [rows], perm=there),
            helper.make_node(node.op_type, [rows], [result], node.name, axis=rank - 1),
            new_node(Op.Transpose, [result], [output], perm=back),
        ]


class InterpolateFew(Rewriter):
    """Lets half a block of channels or less leave the blocked layout before, not behind, an interpolation.

    ONNX Runtime keeps what a blocked convolution makes in that layout while it interpolates: one channel of
    an edge detector takes the memory, and the time, of sixteen. ``block``: channels in a block.
    """

    def __init__(self, model: onnx.ModelProto, values: Mapping[str, Array], block: int) -> None:
        super().__init__(model, values)
        self._block = block
        # What blocked values, which nothing makes any more, are called outside of that layout.
        self._planes: dict[str, str] = {}

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        source = node.input[0] if node.input else ""
        if source in self._planes:
            if op_of(node) == Op.ReorderOutput:
                return []
            return [_renamed(node, self._planes[source], self._planes[node.output[0]])]
        if not _interpolates(node) or self.versions.get("", 0) < _OPSET:
            return None
        planes: dict[str, str] = {}
        if not self._leave(node.output[0], planes):
            return None
        self._planes |= planes
        return self._resized(node, planes)

    def _leave(self, name: str, found: dict[str, str]) -> bool:
        """Note what ``name``, and what is made of it, are as planes; return whether all of them leave."""
        readers = self.readers[name]
        ends = [node for node in readers if self._ends(node)]
        found[name] = ends[0].output[0] if ends else f"{name}/planes"
        others = [node for node in readers if node not in ends]
        return len(ends) <= 1 <= len(readers) and all(
            traits_of(op_of(node)).function is not None
            and len(node.input) == 1
            and self._leave(node.output[0], found)
            for node in others
        )

    def _ends(self, node: onnx.NodeProto) -> bool:
        """Return whether ``node`` makes planes of half a block or less of channels."""
        shape = self.shape(node.output[0])
        few = len(shape) == _RANK and 2 * shape[1] <= self._block
        return few and op_of(node) == Op.ReorderOutput and not attributes(node).get("channels_last")

    def _resized(self, node: onnx.NodeProto, found: Mapping[str, str]) -> list[onnx.NodeProto]:
        given, result = attributes(node), found[node.output[0]]
        ends = (end for name in found for end in self.readers[name] if self._ends(end))
        before = f"{result}/before"
        resize = self.resize(
            before,
            result,
            given["scales"],
            node.name,
            mode="linear",
            coordinate_transformation_mode=given["coordinate_transformation_mode"],
        )
        return [_renamed(next(ends), node.input[0], before), resize]


def _is_turned(node: onnx.NodeProto) -> bool:
    """Return whether the kernel of ``node`` exchanges its axis with the last one, as a softmax does."""
    kernel = kernel_of(op_of(node))
    return kernel is not None and kernel.scratch == "turned"


def _interpolates(node: onnx.NodeProto) -> bool:
    return op_of(node) == Op.BlockedUpsample and attributes(node).get("mode", "nearest") == "linear"


def _renamed(node: onnx.NodeProto, source: str, result: str) -> onnx.NodeProto:
    return copied(node, [source, *node.input[1:]], [result, *node.output[1:]], result)
