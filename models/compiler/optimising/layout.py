"""The layout of images: plain (NCHW), or blocked (NCHWc), in which ONNX Runtime computes convolutions.

A blocked tensor has its channels in blocks that lie side by side: of [N, C, H, W] the bytes are those of
[N, C/b, H, W, b], and C is filled up to a multiple of b. ONNX Runtime has operators for it (the domain
com.microsoft.nchwc), which are written here, and two that turn a tensor: ReorderInput and ReorderOutput.
Each value gets its layout from what makes it:

- Convolutions whose weights are constant are blocked, and so are pools where their input is already or a
  convolution reads their result. With less than a block of channels a convolution reads a plain image.
- Operators on elements, Concat and Split do the same to whole blocks as to planes: they run on blocked
  tensors as they are. A gate, the factor per channel of squeeze-excite, becomes the weights of a
  convolution of one pixel a channel; so do scale and shift of a batch norm. A softmax along channels that
  are one block has its numbers side by side. What repeats or interpolates pixels is blocked, but for few
  channels, which would take the memory and the time of a block.
- All others read and make plain tensors. A tensor is turned once, before what first needs it.

Where channels are not whole blocks, others fill them (filled_channels.py): copies, or what ONNX Runtime's
blocked convolution makes with weights of zero. On the latter nothing runs that makes infinities of numbers.

An addition and an activation behind a convolution become part of it, in either layout. So an addition is
rounded once less. Everything else is the same operator on the same numbers.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from models.compiler.analysis.graph import NCHWC_DOMAIN, PLAIN_DOMAINS
from models.compiler.optimising.blocked_weights import BlockedWeights, Fill, Order
from models.compiler.optimising.filled_channels import AT_ONCE, FilledChannels
from models.graphs.nodes import attributes, copied, node_of, reads, set_attributes
from models.graphs.rewriting import Rewriter
from models.network.activations import SPELLINGS
from models.network.fields import Array
from models.network.operators.convolution import ACTIVATIONS, ADDEND, CONVOLUTIONS
from models.network.operators.elements import POINTWISE
from models.network.operators.reading import Resize, Softmax
from models.network.patterns import activations_in
from models.packs.records.pieces import TurnedSoftmax

_CHANNEL_AXIS = 1
_RANK = 4
_SOFTMAXES = ("Softmax", "LogSoftmax")
_POOLS = ("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool")
#: Sums of several values: a convolution has room for one of them.
_SUMS = ("Add", "Sum")
#: On channels that fill with zeros: they make numbers of numbers.
_FINITE = ("Add", "Gelu", "HardSigmoid", "Mul", "QuickGelu", "Relu", "Sigmoid", "Sum", "Tanh")
#: As weights of a convolution of each channel by itself, however many there are.
_FACTORS = (-1, 1, 1, 1)
_TO_PIXELS, _TO_PLANES = [0, 2, 3, 1], [0, 3, 1, 2]
#: How blocked interpolation says where pixels lie.
_COORDINATES = ("align_corners", "asymmetric", "half_pixel")
#: The domain of a plain convolution with an activation.
_FUSED_DOMAIN = "com.microsoft"
#: From here on Resize takes its scales third, and says how pixels are found.
_WITH_MODES = 11


class Layout(Rewriter):
    """Gives each image of ``model``, which ONNX Runtime optimised, its layout.

    ``values``: those of known size, by name. ``block``: channels in a block. ``folder``: where weights lie.

    ``types``: of the values that are new. ``softmaxes``: those along blocks.

    ``_blocked``: by plain values the blocked tensors that equal them. ``_turning``: plain values that
    nobody needed until now. ``_open``: convolutions whose result one operator alone reads, by that.
    ``_swishes``: by what the nodes of a HardSwish make, what it is of.
    """

    def __init__(
        self, model: onnx.ModelProto, values: Mapping[str, Array], block: int, folder: Path
    ) -> None:
        super().__init__(model, values)
        self.types: dict[str, Array] = {}
        self.softmaxes: list[TurnedSoftmax] = []
        self._block = block
        self._weights = BlockedWeights(self.tensors, folder, block)
        self._filled = FilledChannels(self, block)
        self._blocked: dict[str, str] = {}
        self._turning: dict[str, str] = {}
        self._open: dict[str, onnx.NodeProto] = {}
        self._swishes = self._find_swishes()

    def run(self) -> bool:
        changed = super().run()
        self.graph.initializer.extend(self._weights.written)
        read = {name for node in self.graph.node for name in reads(node)}
        held = [tensor for tensor in self.graph.initializer if tensor.name in read]
        del self.graph.initializer[:]
        self.graph.initializer.extend(held)
        del self.graph.value_info[:]
        there = {item.domain for item in self.model.opset_import}
        for domain in (NCHWC_DOMAIN, _FUSED_DOMAIN):
            if domain not in there:
                self.model.opset_import.add(domain=domain, version=1)
        return changed

    @property
    def used_channels(self) -> dict[str, int]:
        """Of blocked values that convolutions read and make, the channels before those that only fill."""
        plain = {blocked: name for name, blocked in self._blocked.items()}
        around = {
            name
            for node in self.graph.node
            if node.op_type in CONVOLUTIONS
            for name in (node.input[0], node.output[0])
            if name in plain and self.types[name].shape != self.shape(plain[name])
        }
        return {name: self._channels(plain[name]) for name in sorted(around)}

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        nodes = self._fused(node)
        if nodes is None:
            nodes = self._in_blocks(node)
        if nodes is not None:
            return nodes
        if node.op_type in CONVOLUTIONS and self._may_grow(node):
            self._open_for_more(node, node)
        before = list(self._plain(reads(node)))
        return [*before, node] if before else None

    def _in_blocks(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Return what ``node`` is on blocked tensors; None: it is on plain ones."""
        if node.domain not in PLAIN_DOMAINS or not node.output or not node.input:
            return None
        if node.op_type in CONVOLUTIONS:
            return self._convolution(node)
        if node.op_type in _POOLS:
            return self._pool(node)
        if self._may_move(node):
            return self._moved(node)
        if node.op_type in _SOFTMAXES:
            return self._softmax(node)
        x = node.input[0]
        if node.op_type == "Mul":
            return self._gate(node)
        if x not in self._blocked:
            return None
        if node.op_type == "BatchNormalization":
            return self._scaled(node)
        if node.op_type in ("Resize", "Upsample"):
            return self._resized(node)
        if node.op_type == "Transpose" and attributes(node).get("perm") == _TO_PIXELS:
            return [self._leaving(self._blocked[x], node.output[0], x, channels_last=1)]
        return None

    # What is known of a value.

    def _whole(self, channels: int) -> int:
        """Return ``channels`` filled up to whole blocks."""
        return channels + -channels % self._block

    def _is_image(self, name: str) -> bool:
        value = self.values.get(name)
        return value is not None and len(value.shape) == _RANK and value.dtype == "float32"

    def _channels(self, name: str) -> int:
        return self.shape(name)[_CHANNEL_AXIS]

    def _has_blocks(self, name: str) -> bool:
        """Return whether the channels of ``name`` are whole blocks, some of them copies perhaps."""
        return self._is_image(name) and (
            not self._channels(name) % self._block or name in self._filled
        )

    def _fill(self, name: str) -> Fill:
        return Fill.COPIES if name in self._filled else Fill.ZEROS

    # Tensors from one layout to the other.

    def _new(self, name: str) -> str:
        """Return what the blocked tensor that equals ``name`` is called, which a node is to make."""
        blocked = self.fresh(f"{name}/blocked")
        array = self.values[name]
        batch, channels, *size = array.shape
        self.types[blocked] = Array(dtype=array.dtype, shape=(batch, self._whole(channels), *size))
        self._blocked[name] = blocked
        return blocked

    def _made(self, *nodes: onnx.NodeProto, of: Iterable[str]) -> list[onnx.NodeProto]:
        """Return ``nodes``, which make the blocked tensors of plain values, and these if outputs."""
        result = list(nodes)
        for name in of:
            if name in self.outputs:
                result.append(self._leaving(self._blocked[name], name, name))
            else:
                self._turning[name] = self._blocked[name]
        return result

    def _plain(self, names: Iterable[str]) -> Iterator[onnx.NodeProto]:
        """Yield what makes plain those of ``names`` that are not yet."""
        for name in names:
            if name in self._turning:
                yield self._leaving(self._turning.pop(name), name, name)

    def _leaving(self, blocked: str, result: str, value: str, **given: int) -> onnx.NodeProto:
        channels = self._channels(value)
        return helper.make_node(
            "ReorderOutput",
            [blocked],
            [result],
            f"{result}/plain",
            domain=NCHWC_DOMAIN,
            channels=channels,
            **given,
        )

    def _entering(self, name: str) -> list[onnx.NodeProto]:
        """Return the node that makes ``name`` blocked, none where it is already."""
        if name in self._blocked:
            return []
        source, given = name, {}
        maker = self.makers.get(name)
        if maker is not None and maker.op_type == "Transpose":
            if attributes(maker).get("perm") == _TO_PLANES and self._is_image(maker.input[0]):
                source, given = maker.input[0], {"channels_last": 1}
        before = list(self._plain([source]))
        blocked = self._new(name)
        node = helper.make_node(
            "ReorderInput", [source], [blocked], blocked, domain=NCHWC_DOMAIN, **given
        )
        return [*before, node]

    def _may_enter(self, name: str) -> bool:
        """Return whether convolutions may read ``name`` in blocks: it is filled with copies, or can be turned."""
        if name in self._filled:
            return name in self._blocked
        return self._is_image(name) and not self._channels(name) % AT_ONCE

    # Convolutions.

    def _convolution(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        order = self._order(node)
        if order is None:
            return None
        x, y = node.input[0], node.output[0]
        is_read_plain = self._reads_planes(node)
        before = list(self._plain([x])) if is_read_plain else self._entering(x)
        source = x if is_read_plain else self._blocked[x]
        held = [self._weights.weights(node.input[1], order)]
        if any(node.input[2:]):
            held.append(self._weights.vector(node.input[2], order.features, order.outputs))
        inside = copied(node, [source, *held], [self._new(y)])
        inside.op_type, inside.domain = "Conv", NCHWC_DOMAIN
        if attributes(node).get("group", 1) > 1 and order.depth == 1:
            set_attributes(inside, group=order.features)
        return [*before, *self._convolved(node, inside)]

    def _convolved(self, node: onnx.NodeProto, inside: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return ``inside``, the convolution that ``node`` is."""
        self._open_for_more(node, inside)
        return self._made(inside, of=[node.output[0]])

    def _reads_planes(self, node: onnx.NodeProto) -> bool:
        """Return whether a blocked convolution reads a plain image: less than a block of channels."""
        x = node.input[0]
        is_small = self._channels(x) < self._block and x not in self._filled
        return is_small and attributes(node).get("group", 1) == 1

    def _order(self, node: onnx.NodeProto) -> Order | None:
        """Return the order of the weights of a convolution in blocks; None: it is on plain tensors."""
        x, y = node.input[0], node.output[0]
        constants = [self.tensors.get(name) for name in node.input[1:] if name]
        is_known = self._is_image(x) and self._is_image(y) and len(node.input) <= ADDEND
        if not is_known or not all(
            item and item.data_type == TensorProto.FLOAT for item in constants
        ):
            return None
        features, depth, *_ = self.tensors[node.input[1]].dims
        group, block = attributes(node).get("group", 1), self._block
        outputs, inputs = self._fill(y), self._fill(x)
        if group > 1 and depth == 1 and features == group:
            if not self._may_enter(x) or (x in self._filled) != (y in self._filled):
                return None
            return Order(self._whole(features), 1, False, outputs, inputs)
        if group > 1:
            if depth % block or (features // group) % block or not self._may_enter(x):
                return None
            return Order(features, depth, True, outputs, inputs)
        if self._reads_planes(node):
            return Order(self._whole(features), depth, False, outputs, inputs)
        if not self._may_enter(x):
            return None
        return Order(self._whole(features), self._whole(depth), True, outputs, inputs)

    def _scaled(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Return a batch norm of a blocked tensor as a convolution of each channel by itself."""
        x, y = node.input[0], node.output[0]
        statistics = [self.tensors.get(name) for name in node.input[1:]]
        is_known = all(item and item.data_type == TensorProto.FLOAT for item in statistics)
        if not is_known or len(node.output) > 1 or not attributes(node).get("spatial", 1):
            return None
        if x in self._filled:
            return None
        scale, shift, mean, variance = map(self._weights.array, node.input[1:])
        epsilon = np.float32(attributes(node).get("epsilon", 1e-5))
        factor = scale / np.sqrt(variance + epsilon)
        count = self._whole(len(factor))
        weights, bias = np.zeros((count, 1, 1, 1), np.float32), np.zeros(count, np.float32)
        weights[: len(factor), 0, 0, 0] = factor
        bias[: len(factor)] = shift - mean * factor
        held = [
            self._weights.new(f"{y}/{title}", array)
            for title, array in (("scale", weights), ("shift", bias))
        ]
        return self._convolved(node, self._by_channel(node, [self._blocked[x], *held], y, count))

    def _by_channel(
        self, node: onnx.NodeProto, read: list[str], y: str, count: int
    ) -> onnx.NodeProto:
        """Return a convolution of one pixel of each channel by itself."""
        return helper.make_node(
            "Conv",
            read,
            [self._new(y)],
            node.name,
            domain=NCHWC_DOMAIN,
            group=count,
            kernel_shape=[1, 1],
        )

    def _gate(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Return a product with a factor per channel as a convolution whose weights these are.

        One pixel of whole blocks lies alike in both layouts. ONNX Runtime multiplies in blocks, too, but
        by 16 elements at a time: that is as slow as two reorders.
        """
        for x, gate in (tuple(node.input), tuple(reversed(node.input))):
            if x not in self._blocked or not self._is_image(node.output[0]):
                continue
            factors = self._constant_factors(x, gate) or self._computed_factors(x, gate)
            if factors is not None:
                weights, before = factors
                count = self._whole(self._channels(x))
                inside = self._by_channel(node, [self._blocked[x], weights], node.output[0], count)
                return [*before, *self._convolved(node, inside)]
        return None

    def _computed_factors(self, x: str, gate: str) -> tuple[str, list[onnx.NodeProto]] | None:
        """Return weights that are ``gate``, one pixel, and the node that makes them."""
        batch, channels, *_ = self.shape(x)
        is_pixel = self._is_image(gate) and self.shape(gate) == (1, channels, 1, 1)
        if not is_pixel or batch != 1 or not self._has_blocks(x):
            return None
        if gate in self._filled and gate not in self._blocked:
            return None
        weights = self.fresh(f"{gate}/factors")
        shape = (self._whole(channels), 1, 1, 1)
        self.types[weights] = Array(dtype="float32", shape=shape)
        return weights, [self.reshape(self._blocked.get(gate, gate), weights, _FACTORS)]

    def _constant_factors(self, x: str, gate: str) -> tuple[str, list[onnx.NodeProto]] | None:
        """Return weights that are the constant ``gate``, of [C, 1, 1]."""
        tensor, channels = self.tensors.get(gate), self._channels(x)
        if tensor is None or tensor.data_type != TensorProto.FLOAT or x in self._filled:
            return None
        if tuple(tensor.dims) not in ((channels, 1, 1), (1, channels, 1, 1)):
            return None
        weights = np.zeros((self._whole(channels), 1, 1, 1), np.float32)
        weights[:channels, 0, 0, 0] = self._weights.array(gate).reshape(-1)
        return self._weights.new(gate, weights), []

    # Sums and activations that become part of convolutions.

    def _find_swishes(self) -> dict[str, str]:
        """Return, of HardSwishes in two nodes, what these make, with what it is of.

        The value that both read has no other reader.
        """
        nodes = [node_of(node, self.versions) for node in self.graph.node]
        number = self._known.number
        found = {}
        for group in activations_in(nodes, self.outputs, number):
            if (
                group.activation.kind == "hard_swish"
                and self.uses[group.x] == len(group.nodes) == 2
            ):
                found |= {nodes[index].output: group.x for index in group.nodes}
        return found

    def _open_for_more(self, node: onnx.NodeProto, convolution: onnx.NodeProto) -> None:
        """Note that a sum or an activation may become part of ``convolution``, which makes what ``node`` did."""
        y = node.output[0]
        is_swish = convolution.domain == NCHWC_DOMAIN and y in self._swishes.values()
        if (self.uses[y] == 1 or is_swish) and y not in self.outputs:
            self._open[y] = convolution

    def _may_grow(self, node: onnx.NodeProto) -> bool:
        """Return whether a plain convolution has a kernel with a sum and an activation inside."""
        value = self.values.get(node.output[0])
        return value is not None and value.dtype == "float32" and len(value.shape) <= _RANK

    def _fused(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Return the convolution before ``node`` with that inside it; None: it cannot be.

        It stands here, not where it was: what is added may be made in between.
        """
        if node.domain or not node.input:
            return None
        source = self._swishes.get(node.output[0], "")
        if source in self._open and "activation" not in attributes(self._open[source]):
            if node.op_type == "HardSigmoid":
                return []
            return self._instead(
                _with_activation(self._open.pop(source), "HardSwish", []), node, []
            )
        for name in node.input:
            convolution = self._open.get(name)
            if convolution is None or "activation" in attributes(convolution):
                continue
            nodes = self._with_sum(convolution, node, name)
            if node.op_type in ACTIVATIONS:
                given, names = attributes(node), SPELLINGS[node.op_type].parameters
                parameters = [given.get(key, default) for key, default in names]
                fused = _with_activation(convolution, node.op_type, parameters)
                nodes = self._instead(fused, node, [])
            if nodes is not None:
                del self._open[name]
                return nodes
        return None

    def _with_sum(
        self, convolution: onnx.NodeProto, node: onnx.NodeProto, name: str
    ) -> list[onnx.NodeProto] | None:
        others = [other for other in node.input if other != name]
        if node.op_type not in _SUMS or len(node.input) != 2 or len(others) != 1:
            return None
        other, shape = others[0], self.shape(node.output[0])
        is_same = shape and self.shape(name) == shape == self.shape(other)
        if any(convolution.input[ADDEND:]) or not is_same:
            return None
        if convolution.domain == NCHWC_DOMAIN:
            if other not in self._blocked and not (
                self._has_blocks(other) and self._may_enter(other)
            ):
                return None
            before = self._entering(other)
            addend = self._blocked[other]
        else:
            before, addend = list(self._plain([other])), other
        held = list(convolution.input[:ADDEND])
        fused = copied(convolution, [*held, *[""] * (ADDEND - len(held)), addend])
        return self._instead(fused, node, before)

    def _instead(
        self, fused: onnx.NodeProto, node: onnx.NodeProto, before: list[onnx.NodeProto]
    ) -> list[onnx.NodeProto]:
        """Return ``before`` and ``fused``, which makes what ``node`` made."""
        y = node.output[0]
        if fused.domain != NCHWC_DOMAIN:
            fused.op_type, fused.domain = "FusedConv", _FUSED_DOMAIN
            fused.output[:] = [y]
            self._open_for_more(node, fused)
            return [*before, fused]
        fused.output[:] = [self._new(y)]
        self._open_for_more(node, fused)
        return [*before, *self._made(fused, of=[y])]

    # Everything else.

    def _pool(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        x, y = node.input[0], node.output[0]
        dilations = attributes(node).get("dilations", [])
        is_known = self._has_blocks(x) and self._is_image(y) and len(node.output) == 1
        if not is_known or (node.op_type == "AveragePool" and set(dilations) > {1}):
            return None
        if x not in self._blocked and (x in self._filled or not self._convolves(y)):
            return None
        before = self._entering(x)
        inside = copied(node, [self._blocked[x]], [self._new(y)])
        inside.domain = NCHWC_DOMAIN
        return [*before, *self._made(inside, of=[y])]

    def _convolves(self, name: str) -> bool:
        """Return whether a convolution of blocks reads ``name``."""
        return any(
            node.op_type in CONVOLUTIONS and self._order(node) and not self._reads_planes(node)
            for node in self.readers[name]
        )

    def _tensors(self, node: onnx.NodeProto) -> list[str]:
        # The second input of a Split says how large its parts are.
        read = node.input[:1] if node.op_type == "Split" else node.input
        return [name for name in read if name and not self.is_single(name)]

    def _may_move(self, node: onnx.NodeProto) -> bool:
        """Return whether ``node`` does the same on blocked tensors, of which it has some."""
        tensors = self._tensors(node)
        blocked = [name for name in tensors if name in self._blocked]
        if not blocked or not all(map(self._is_image, (*tensors, *node.output))):
            return False
        is_whole = all(map(self._has_blocks, (*tensors, *node.output)))
        is_ready = len(blocked) == len(tensors)
        if node.op_type in ("Concat", "Split"):
            on_channels = attributes(node).get("axis", 0) in (_CHANNEL_AXIS, _CHANNEL_AXIS - _RANK)
            return on_channels and is_whole and is_ready
        shape = self.shape(node.output[0])
        if node.op_type not in POINTWISE or len(node.output) != 1:
            return False
        if any(self.shape(name) != shape for name in tensors):
            return False
        if is_whole:
            return is_ready or not shape[_CHANNEL_AXIS] % self._block
        return is_ready and node.op_type in _FINITE

    def _moved(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return ``node`` on blocked tensors."""
        before = [made for name in self._tensors(node) for made in self._entering(name)]
        read = [self._blocked.get(name, name) for name in node.input]
        inside = copied(node, read, [self._new(name) for name in node.output])
        return [*before, *self._made(inside, of=node.output)]

    def _softmax(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Return a softmax along channels that are one block along the rows of a blocked tensor."""
        operator, x, y = self.operator(node), node.input[0], node.output[0]
        if not isinstance(operator, Softmax) or not self._is_image(x):
            return None
        batch, channels, height, width = self.shape(x)
        along_channels = (operator.length, operator.inner) == (channels, height * width)
        if not along_channels or channels != self._block:
            return None
        before = self._entering(x)
        source = self._blocked[x]
        rows, result = (self.fresh(f"{y}/{role}") for role in ("rows", "sums"))
        blocked = self._new(y)
        pixels = (batch, height, width, channels)
        self.types |= dict.fromkeys((rows, result), Array(dtype="float32", shape=pixels))
        turned = TurnedSoftmax(source=source, output=blocked, axis=_CHANNEL_AXIS)
        self.softmaxes.append(turned)
        nodes = [
            self.reshape(source, rows, pixels),
            helper.make_node(node.op_type, [rows], [result], node.name, axis=len(pixels) - 1),
            self.reshape(result, blocked, self.shape(x)),
        ]
        return [*before, *self._made(*nodes, of=[y])]

    def _resized(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Return a blocked tensor made larger by whole factors, pixels repeated or interpolated."""
        x, y = node.input[0], node.output[0]
        given, operator = attributes(node), self.operator(node)
        if not isinstance(operator, Resize) or not self._is_image(y):
            return None
        if 2 * self._channels(x) <= self._block:
            return None
        if given.get("mode", "nearest") == "nearest":
            factors = operator.factors
            said = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
        else:
            is_old = node.op_type == "Upsample" or self.versions[""] < _WITH_MODES
            default = "asymmetric" if is_old else "half_pixel"
            coordinates = given.get("coordinate_transformation_mode", default)
            scales = self.numbers(node.input[1 if is_old else 2]) if len(node.input) < 4 else None
            factors = _factors(operator, scales) if coordinates in _COORDINATES else None
            said = {"mode": "linear", "coordinate_transformation_mode": coordinates}
        if factors is None or factors[:2] != (1, 1):
            return None
        inside = helper.make_node(
            "Upsample",
            [self._blocked[x]],
            [self._new(y)],
            node.name,
            domain=NCHWC_DOMAIN,
            scales=list(factors),
            **said,
        )
        return self._made(inside, of=[y])


def _with_activation(
    convolution: onnx.NodeProto, name: str, parameters: list[float]
) -> onnx.NodeProto:
    fused = copied(convolution)
    fused.attribute.append(helper.make_attribute("activation", name))
    if parameters:
        fused.attribute.append(helper.make_attribute("activation_params", parameters))
    return fused


def _factors(operator: Resize, scales: NDArray[Any] | None) -> tuple[int, ...] | None:
    """Return by which whole numbers lengths grow; ``scales``: what a node says of them."""
    pairs = list(zip(operator.y.shape, operator.x.shape, strict=True))
    factors = tuple(result // length for result, length in pairs)
    if any(result % length for result, length in pairs):
        return None
    return factors if scales is None or tuple(scales.tolist()) == factors else None
