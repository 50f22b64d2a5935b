"""A network on plain tensors, of one in ONNX Runtime's blocked layout (NCHWc).

Reorders go, weights get their order back, and so do their sizes: channels that only fill the last block
are left out. How many there were is nowhere written; but nobody reads them: their weights are zero, in all
convolutions that read them. Values that pass on their channels one by one (pools, depthwise convolutions,
sums) have the same number, so these are found together, a class of values each.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.layouts import plain_weight
from pipeline.export_c.network.in_blocks import BLOCKED, with_plain_softmax
from pipeline.export_c.network.network import Network, Node

_FUSED = {"com.microsoft.FusedConv": "Conv", "com.microsoft.FusedGemm": "Gemm"}
#: Names of an activation's parameters, in the order in which convolutions give them.
_PARAMETERS = {
    "LeakyRelu": ("alpha",),
    "Clip": ("min", "max"),
    "HardSigmoid": ("alpha", "beta"),
}
_PREFIX = "activation_"
_SUM = 3
_SUM_NORMALIZED = "com.microsoft.SkipLayerNormalization"


def plain_network(network: Network, block: int) -> Network:
    """Return what ``network`` computes in standard operators; ``block``: channels in a block, 1: none."""
    network = with_plain_softmax(network, block)
    channels = _Channels(network, block)
    constants = dict(network.constants)
    translation = _Translation(channels, constants, block)
    nodes = tuple(item for node in network.nodes for item in translation.nodes(node))
    return replace(network, nodes=nodes, constants=constants)


class _Channels:
    """How many channels of each blocked value are read; ``None``: all of them."""

    def __init__(self, network: Network, block: int) -> None:
        self._constants = network.constants
        self._block = block
        self._class: dict[str, str] = {}
        self._needed: dict[str, int] = {}
        self._all = {port.name for port in (*network.inputs, *network.outputs)}
        for node in network.nodes:
            self._join(node)
        for node in network.nodes:
            self._note(node)
        self._all = {self._root(name) for name in self._all}

    def kept(self, name: str) -> int | None:
        """Return how many channels of ``name`` stay, None: all."""
        root = self._root(name)
        return None if root in self._all else self._needed.get(root)

    def _root(self, name: str) -> str:
        while name in self._class:
            name = self._class[name]
        return name

    def _join(self, node: Node) -> None:
        """Put values of the same channels in one class."""
        same = [name for name in node.inputs if name and name not in self._constants]
        if node.operator == f"{BLOCKED}Conv":
            same = [*same[:1]] if self._is_depthwise(node) else []
            same += [name for name in node.inputs[_SUM:] if name]
        elif node.operator in _OTHERS:
            return
        for name in same:
            if self._root(name) != self._root(node.output):
                self._class[self._root(name)] = self._root(node.output)

    def _is_depthwise(self, node: Node) -> bool:
        weight = self._constants.get(node.inputs[1])
        group = node.attributes.get("group", 1)
        return group > 1 and (weight is None or weight.shape[:2] == (group, 1))

    def _note(self, node: Node) -> None:
        """Note how many channels ``node`` reads of its input."""
        if node.operator == f"{BLOCKED}ReorderOutput":
            self._need(node.inputs[0], int(node.attributes["channels"]))
        elif node.operator == f"{BLOCKED}Conv":
            self._note_convolution(node, self._constants.get(node.inputs[1]))
        elif node.operator in _OTHERS and not node.operator.startswith(BLOCKED):
            self._all.update((*node.inputs, *node.outputs))

    def _note_convolution(self, node: Node, weight: NDArray[Any] | None) -> None:
        in_groups = node.attributes.get("group", 1) > 1
        if weight is None or (in_groups and not self._is_depthwise(node)):
            self._all.update((node.inputs[0], node.output))
        elif not in_groups and weight.shape[1] < self._block:  # reads a plain tensor
            self._all.add(node.inputs[0])
        elif not in_groups:
            self._need(node.inputs[0], self._read(weight))

    def _read(self, weight: NDArray[Any]) -> int:
        """Return how many input channels ``weight``, blocked, reads, up to a block fewer than it has."""
        plain = plain_weight(np.asarray(weight), self._block)
        total = plain.shape[1]
        used = np.flatnonzero(plain.any(axis=(0, *range(2, plain.ndim))))
        last = int(used[-1]) + 1 if used.size else 1
        return int(max(last, total - self._block + 1))

    def _need(self, name: str, channels: int) -> None:
        root = self._root(name)
        self._needed[root] = max(self._needed.get(root, 0), channels)


# Operators whose output does not have the channels of their inputs one by one.
_OTHERS = frozenset(
    (
        *(f"{BLOCKED}{name}" for name in ("ReorderInput", "ReorderOutput")),
        *("Concat", "Split", "Reshape", "Flatten", "Gemm", "MatMul", "Transpose", "Slice"),
        *("Squeeze", "Unsqueeze", "Softmax", "ReduceMean", "Conv", "ConvTranspose", "Pad"),
        *_FUSED,
    )
)


class _Translation:
    """Makes plain nodes of blocked and fused ones; adds the constants that they need."""

    def __init__(self, channels: _Channels, constants: dict[str, NDArray[Any]], block: int) -> None:
        self._channels = channels
        self._constants = constants
        self._block = block

    def nodes(self, node: Node) -> Iterator[Node]:
        """Yield what ``node`` is in standard operators."""
        blocked = node.operator.startswith(BLOCKED)
        operator = _FUSED.get(node.operator, node.operator.removeprefix(BLOCKED))
        if operator.startswith("Reorder") and node.attributes.get("channels_last"):
            yield from self._turned(node, operator)
        elif operator == _SUM_NORMALIZED:
            yield from _summed(node)
        elif operator == "ReorderOutput":
            yield replace(node, operator="Identity", attributes={})
        elif operator == "ReorderInput":
            yield self._first_channels(node)
        elif operator in {"Conv", "Gemm"} and (blocked or operator != node.operator):
            yield from self._apart(node, operator, blocked)
        else:
            yield replace(node, operator=operator)

    def _turned(self, node: Node, operator: str) -> Iterator[Node]:
        """Yield what makes the other one of channels in front and channels last."""
        perm = [0, 2, 3, 1] if operator == "ReorderOutput" else [0, 3, 1, 2]
        turned = replace(node, operator="Transpose", attributes={"perm": perm})
        if operator == "ReorderOutput":
            yield turned
            return
        inside = f"{node.output}/turned"
        yield replace(turned, outputs=(inside,))
        yield self._first_channels(replace(node, inputs=(inside,)))

    def _first_channels(self, node: Node) -> Node:
        kept = self._channels.kept(node.output)
        if kept is None:
            return replace(node, operator="Identity", attributes={})
        attributes = {"starts": [0], "ends": [kept], "axes": [1]}
        return replace(node, operator="Slice", attributes=attributes, opset=1)

    def _apart(self, node: Node, operator: str, blocked: bool) -> Iterator[Node]:
        """Yield the operator, its sum and its activation as nodes of their own."""
        attributes = dict(node.attributes)
        activation = attributes.pop("activation", None)
        numbers = _parameters(activation, attributes)
        added = [name for name in node.inputs[_SUM:] if name] if operator == "Conv" else []
        read = node.inputs[: _SUM if operator == "Conv" else None]
        steps: list[Node] = []
        if blocked and node.inputs[1] not in self._constants:
            before, product = self._gate(node)
            yield before
            steps.append(product)
        else:
            names = self._trimmed(node, read) if blocked else read
            if attributes.get("group", 1) > 1 and blocked:
                weight = self._constants[names[1]]
                attributes["group"] = len(weight) if weight.shape[1] == 1 else attributes["group"]
            steps.append(replace(node, operator=operator, inputs=names, attributes=attributes))
        steps += [
            Node("Add", node.label, (node.output, name), (node.output,), {}, node.opset)
            for name in added
        ]
        if activation:
            made = (node.output,)
            steps.append(Node(activation, node.label, made, made, numbers, 1))
        yield from _in_a_row(steps, node.output)

    def _gate(self, node: Node) -> tuple[Node, Node]:
        """Return a convolution whose weights are factors of channels as the product that it is."""
        shape, factors = f"{node.output}/shape", f"{node.output}/factors"
        self._constants[shape] = np.array([1, -1, 1, 1], np.int64)
        before = Node("Reshape", node.label, (node.inputs[1], shape), (factors,), {}, 13)
        return before, Node(
            "Mul", node.label, (node.inputs[0], factors), (node.output,), {}, node.opset
        )

    def _trimmed(self, node: Node, read: tuple[str, ...]) -> tuple[str, ...]:
        """Return the inputs of a blocked convolution with plain weights, which are added."""
        weight = plain_weight(np.asarray(self._constants[read[1]]), self._block)
        rows = self._channels.kept(node.output)
        depth = self._channels.kept(read[0]) if weight.shape[1] > 1 else None
        names = [read[0], f"{node.output}/weight"]
        self._constants[names[1]] = np.ascontiguousarray(weight[:rows, :depth])
        if len(read) > 2 and read[2]:
            names.append(f"{node.output}/bias")
            self._constants[names[2]] = np.asarray(self._constants[read[2]])[:rows]
        return tuple(names)


def _parameters(activation: str | None, attributes: dict[str, Any]) -> dict[str, float]:
    """Take the parameters of ``activation`` out of ``attributes``, by the names that it has for them.

    Convolutions give a list, a Gemm an attribute ``activation_NAME`` each.
    """
    listed = attributes.pop("activation_params", ())
    numbers = dict(zip(_PARAMETERS.get(activation or "", ()), listed, strict=False))
    for name in [name for name in attributes if name.startswith(_PREFIX)]:
        numbers[name.removeprefix(_PREFIX)] = attributes.pop(name)
    return numbers


def _in_a_row(steps: list[Node], output: str) -> Iterator[Node]:
    """Yield ``steps``, each of which reads and makes ``output``, with names of their own in between."""
    for number, step in enumerate(steps):
        source = f"{output}/{number}" if number else None
        made = output if number == len(steps) - 1 else f"{output}/{number + 1}"
        inputs = step.inputs if source is None else (source, *step.inputs[1:])
        yield replace(step, inputs=inputs, outputs=(made,))


def _summed(node: Node) -> Iterator[Node]:
    """Yield a layer normalisation of a sum, and of a bias if there is one, as nodes of their own."""
    value, other, scale, shift, bias = (*node.inputs, "", "")[:5]
    outputs = (*node.outputs, "", "", "")
    whole = outputs[3] or f"{node.output}/sum"
    before = f"{whole}/0" if bias else whole
    yield Node("Add", node.label, (value, other), (before,), {}, 14)
    if bias:
        yield Node("Add", node.label, (before, bias), (whole,), {}, 14)
    given = {"axis": -1, "epsilon": node.attributes.get("epsilon", 1e-12)}
    inputs = (whole, scale, shift) if shift else (whole, scale)
    yield Node("LayerNormalization", node.label, inputs, (node.output,), given, 17)
