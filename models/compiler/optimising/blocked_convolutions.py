"""Convolutions with a sum and an activation inside, blocked and plain.

A convolution computes act(x * w + b + s). So an addition behind it, of a tensor of the same shape, and an
activation that its kernel has, become part of it: what is in between never goes to memory, and is rounded
once less. ONNX Runtime's own transformers do that for one layout or the other, and before additions that
were blocked later.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.compiler.optimising.blocked_tensors import RANK, BlockedTensors
from models.compiler.optimising.blocked_weights import WeightOrder
from models.graphs.graph import Graph
from models.network.activations import Activation
from models.network.catalogue import traits_of
from models.network.fields import Array
from models.network.names import NCHWC, Op
from models.network.node import Node
from models.network.operators.convolution import ADDEND
from models.network.operators.elements import Map
from models.network.patterns import FoundActivation, activations_in
from models.runtime.kernels import kernel_of

#: As weights of a convolution of each channel by itself, however many there are.
_FACTORS = (-1, 1, 1, 1)


class BlockedConvolutions(BlockedTensors):
    """Writes blocked convolutions, and what they compute along with them.

    ``activations``: results of the nodes of activations of several operators: numbers, if of numbers.

    ``_open``: convolutions whose result one operator alone reads, by that. ``_swishes``: by the results of
    the nodes of a HardSwish what it is of.
    """

    def __init__(self, graph: Graph, block: int, folder: Path | None = None) -> None:
        super().__init__(graph, block, folder)
        self._open: dict[str, Node] = {}
        groups = list(activations_in(graph.nodes, self.outputs, self._known.number))
        self.activations = {graph.nodes[index].output for group in groups for index in group.nodes}
        self._swishes = self._swish_inputs(groups)

    def convolution(self, node: Node) -> list[Node] | None:
        """Return a convolution in blocks; None: it is on plain tensors."""
        order = self.order(node)
        if order is None:
            if self._can_fill(node):
                return self._filled(node)
            if self._has_sums(node):
                self._note_open(node, node)
            return None
        x, y = node.inputs[0], node.output
        reads_plain = self.reads_plain(node)
        before = list(self.plain([x])) if reads_plain else self.enter(x)
        operands = [x if reads_plain else self.blocked[x]]
        operands.append(self.weights.weights(node.inputs[1], order))
        if any(node.inputs[2:]):
            operands.append(self.weights.longer(node.inputs[2], order.features, order.outputs))
        inside = self.node(Op.BlockedConv, operands, [self.new(y)], node.name, **node.attributes)
        if 1 < node.attributes.get("group", 1) == self.channels(x) == self.channels(y):
            inside = inside.with_attributes(group=order.features)
        return [*before, *self._convolved(node, inside)]

    def _can_fill(self, node: Node) -> bool:
        """Return whether a plain convolution can make the channels that fill its result, too."""
        constants = [self.constants.get(name) for name in node.inputs[1:] if name]
        is_ungrouped = node.attributes.get("group", 1) == 1 and len(node.inputs) <= ADDEND
        return (
            is_ungrouped and self.filled.on_windows(node.output) and all(map(_is_float, constants))
        )

    def _filled(self, node: Node) -> list[Node]:
        """Return a plain convolution that makes whole blocks of channels, and what turns them.

        Copies come from convolutions alone: without it those that follow would be unrolled.
        """
        x, y = node.inputs[0], node.output
        batch, channels, *size = self.shape(y)
        features = self.padded(channels)
        operands = [self.weights.longer(name, features, self.fill(y)) for name in node.reads[1:]]
        wide = self.fresh(f"{y}/filled")
        self.values[wide] = Array(dtype="float32", shape=(batch, features, *size))
        inside = node.replaced([x, *operands], [wide])
        return [*self.plain([x]), *self._turned(node, inside)]

    def _turned(self, node: Node, inside: Node) -> list[Node]:
        """Return ``inside``, a plain convolution with whole blocks of channels, turned for ``node``."""
        self._note_open(node, inside)
        reorder = self.node(Op.ReorderInput, [inside.output], [self.new(node.output)])
        return [inside, *self.produced([node.output], reorder)]

    def reads_plain(self, node: Node) -> bool:
        """Return whether a blocked convolution reads a plain image: less than a block of channels."""
        x = node.inputs[0]
        is_small = self.channels(x) < self._block and x not in self.filled
        return is_small and node.attributes.get("group", 1) == 1

    def order(self, node: Node) -> WeightOrder | None:
        """Return the order of the weights of a convolution in blocks; None: it has no such kernel."""
        x, y = node.inputs[0], node.output
        constants = [self.constants.get(name) for name in node.inputs[1:] if name]
        is_static = self.is_image(x) and self.is_image(y) and len(node.inputs) <= ADDEND
        if not is_static or not all(map(_is_float, constants)):
            return None
        features, depth, *_ = self.constants[node.inputs[1]].shape
        group, block = node.attributes.get("group", 1), self._block
        outputs, inputs = self.fill(y), self.fill(x)
        by_channel = WeightOrder(self.padded(features), depth, False, outputs, inputs)
        if self.reads_plain(node):
            return by_channel
        if not self.may_enter(x):
            return None
        if group == 1:
            return WeightOrder(self.padded(features), self.padded(depth), True, outputs, inputs)
        if depth == 1 and features == group:
            return by_channel if inputs == outputs else None
        are_blocks = not depth % block and not (features // group) % block
        return WeightOrder(features, depth, True, outputs, inputs) if are_blocks else None

    def scaled(self, node: Node) -> list[Node] | None:
        """Return a batch norm of a blocked tensor as a convolution of each channel by itself."""
        x, y = node.inputs[0], node.output
        statistics = [self.constants.get(name) for name in node.inputs[1:]]
        is_static = all(map(_is_float, statistics)) and len(node.outputs) == 1
        if not is_static or not node.attributes.get("spatial", 1) or x in self.filled:
            return None
        scale, shift, mean, variance = map(self.weights.array, node.inputs[1:])
        factor = scale / np.sqrt(variance + np.float32(node.attributes.get("epsilon", 1e-5)))
        count = self.padded(len(factor))
        weights, bias = np.zeros((count, 1, 1, 1), np.float32), np.zeros(count, np.float32)
        weights[: len(factor), 0, 0, 0] = factor
        bias[: len(factor)] = shift - mean * factor
        operands = [self.weights.write(f"{y}/scale", weights), self.weights.write(y, bias)]
        return self._by_channel(node, x, operands)

    def gate(self, node: Node) -> list[Node] | None:
        """Return a product with a factor per channel as a convolution whose weights these are.

        One pixel of blocks lies alike in both layouts. ONNX Runtime multiplies in blocks, too, but by 16
        elements at a time: that is as slow as two reorders.
        """
        for x, gate in (node.inputs, node.inputs[::-1]):
            if x not in self.blocked or not self.is_image(node.output):
                continue
            constant = self._constant_factors(x, gate)
            if constant is not None:
                return self._by_channel(node, x, [constant])
            if self._is_gate(x, gate):
                weights = self.fresh(f"{gate}/factors")
                shape = (self.padded(self.channels(x)), 1, 1, 1)
                self.values[weights] = Array(dtype="float32", shape=shape)
                before = self.reshape(self.blocked.get(gate, gate), weights, _FACTORS)
                return [before, *self._by_channel(node, x, [weights])]
        return None

    def _is_gate(self, x: str, gate: str) -> bool:
        """Return whether ``gate`` is a pixel with a factor for each channel of ``x``."""
        batch, channels, *_ = self.shape(x)
        is_pixel = self.is_image(gate) and self.shape(gate) == (1, channels, 1, 1)
        is_ready = gate in self.blocked or not channels % self._block
        return is_pixel and is_ready and batch == 1

    def _constant_factors(self, x: str, gate: str) -> str | None:
        """Return weights that are the constant ``gate``, a factor for each channel; None: it is none."""
        factors, channels = self.constants.get(gate), self.channels(x)
        if not _is_float(factors) or factors is None or x in self.filled:
            return None
        if factors.shape not in ((channels, 1, 1), (1, channels, 1, 1)):
            return None
        weights = np.zeros((self.padded(channels), 1, 1, 1), np.float32)
        weights[:channels, 0, 0, 0] = factors.reshape(-1)
        return self.weights.write(gate, weights)

    def _by_channel(self, node: Node, x: str, operands: Sequence[str]) -> list[Node]:
        """Return a convolution of one pixel of each channel of ``x`` by itself."""
        inside = self.node(
            Op.BlockedConv,
            [self.blocked[x], *operands],
            [self.new(node.output)],
            node.name,
            group=self.padded(self.channels(x)),
            kernel_shape=[1, 1],
        )
        return self._convolved(node, inside)

    def _convolved(self, node: Node, inside: Node) -> list[Node]:
        """Return ``inside``, the blocked convolution that ``node`` is."""
        self._note_open(node, inside)
        return self.produced(node.made, inside)

    # Sums and activations.

    def fused(self, node: Node) -> list[Node] | None:
        """Return the convolution before ``node`` with that inside it; None: it cannot be.

        It stands here, not where it was: what is added may be produced in between.
        """
        if node.domain or not node.inputs or not node.outputs:
            return None
        source = self._swishes.get(node.output)
        if source in self._open:
            if node.operator == Op.HardSigmoid:
                return []
            convolution = _with_activation(self._open.pop(source), Op.HardSwish, [])
            return self._instead(convolution, node)
        row, operator = kernel_of(node.operator), self.operator(node)
        record = traits_of(node.operator)
        for name in node.inputs:
            if name not in self._open:
                continue
            nodes = None
            if row is not None and row.is_absorbed:
                if not isinstance(operator, Map) or not isinstance(operator.function, Activation):
                    continue  # its parameters are no constants
                parameters = operator.function.parameters
                fused = _with_activation(self._open[name], record.name, parameters)
                nodes = self._instead(fused, node)
            elif record.function == "add":
                nodes = self._with_sum(self._open[name], node, name)
            if nodes is not None:
                del self._open[name]
                return nodes
        return None

    def _swish_inputs(self, activations: Iterable[FoundActivation]) -> dict[str, str]:
        """Return, of HardSwishes in two nodes, what these produce, with what they are of.

        The value that both read has no other reader.
        """
        nodes, swishes = self.graph.nodes, dict[str, str]()
        for group in activations:
            is_swish = group.activation.kind == "hard_swish"
            if is_swish and self.uses[group.x] == len(group.nodes) == 2:
                swishes |= {nodes[index].output: group.x for index in group.nodes}
        return swishes

    def _note_open(self, node: Node, convolution: Node) -> None:
        """Note what may get a sum or an activation: ``convolution``, with the result of ``node``."""
        y = node.output
        if "activation" in convolution.attributes or y in self.outputs:
            return
        is_swish = convolution.domain == NCHWC and y in self._swishes.values()
        if self.uses[y] == 1 or is_swish:
            self._open[y] = convolution

    def _has_sums(self, node: Node) -> bool:
        """Return whether a plain convolution has a kernel with a sum and an activation inside."""
        value = self.values.get(node.output)
        return value is not None and value.dtype == "float32" and len(value.shape) <= RANK

    def _with_sum(self, convolution: Node, node: Node, name: str) -> list[Node] | None:
        others = [other for other in node.inputs if other != name]
        if len(node.inputs) != 2 or len(others) != 1 or any(convolution.inputs[ADDEND:]):
            return None
        other, shape = others[0], self.shape(node.output)
        if not shape or self.shape(name) != shape or self.shape(other) != shape:
            return None
        if convolution.domain == NCHWC:
            may_enter = self.fills_blocks(other) and self.may_enter(other)
            if other not in self.blocked and not may_enter:
                return None
            before = self.enter(other)
            addend = self.blocked[other]
        elif self._is_filled(convolution, node):
            return None
        else:
            before, addend = list(self.plain([other])), other
        operands = convolution.inputs[:ADDEND]
        operands += ("",) * (ADDEND - len(operands))
        fused = convolution.replaced([*operands, addend])
        return [*before, *self._instead(fused, node)]

    def _is_filled(self, convolution: Node, node: Node) -> bool:
        """Return whether a plain convolution in front of ``node`` makes channels that fill, too."""
        return self.shape(convolution.output) != self.shape(node.output)

    def _instead(self, fused: Node, node: Node) -> list[Node]:
        """Return ``fused`` with the result of ``node``."""
        if fused.domain == NCHWC:
            return self._convolved(node, fused.replaced(outputs=[self.new(node.output)]))
        if self._is_filled(fused, node):
            wide = self.fresh(f"{node.output}/filled")
            self.values[wide] = self.values[fused.output]
            inside = self.node(Op.FusedConv, fused.inputs, [wide], fused.name, **fused.attributes)
            return self._turned(node, inside)
        fused = self.node(Op.FusedConv, fused.inputs, node.outputs, fused.name, **fused.attributes)
        self._note_open(node, fused)
        return [fused]


def _is_float(array: NDArray[Any] | None) -> bool:
    return array is not None and array.dtype == np.float32


def _with_activation(convolution: Node, operator: Op, parameters: Sequence[float]) -> Node:
    return convolution.with_attributes(
        activation=operator.op_type, activation_params=list(parameters) or None
    )
