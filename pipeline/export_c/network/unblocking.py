"""A network on plain tensors, of one in ONNX Runtime's blocked layout (NCHWc).

Reorders go, weights get their order back, and so do their sizes: channels that only fill the last block
are left out. How many there were is nowhere written; but nobody reads them: their weights are zero, in all
convolutions that read them. Values that pass on their channels one by one (pools, depthwise convolutions,
sums) have the same number, so these are found together, a class of values each.

Operators on elements, Concat and Split are the same on blocked tensors as on plain ones
(models/compiler/optimising/blocked.py). A softmax along channels that are one block is a softmax along the
rows of the same memory, and becomes one along channels again. Anything else reads blocks in a way that is
not known here, and plain tensors would give it other numbers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.layouts import plain_weight
from models.network.node import Node
from models.network.operators.elements import POINTWISE
from pipeline.export_c.errors import ExportError
from pipeline.export_c.network.network import Network

_BLOCKED = "com.microsoft.nchwc."
_CHANNEL_AXIS = 1
_LAST_AXIS = 3
_SOFTMAX_OPSET = 13
_PATTERN = ("Reshape", "Softmax", "Reshape")
_MOVES = frozenset((*POINTWISE, "Concat", "Split"))
_FUSED = ("com.microsoft.FusedConv", "com.microsoft.FusedGemm")
_SUM = 3
_SUM_NORMALIZED = "com.microsoft.SkipLayerNormalization"


def plain_network(network: Network, block: int) -> Network:
    """Return what ``network`` computes in standard operators; ``block``: channels in a block, 1: none."""
    network = _with_plain_softmax(network, block)
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
        if node.operator == f"{_BLOCKED}Conv":
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
        if node.operator == f"{_BLOCKED}ReorderOutput":
            self._need(node.inputs[0], int(node.attributes["channels"]))
        elif node.operator == f"{_BLOCKED}Conv":
            self._note_convolution(node, self._constants.get(node.inputs[1]))
        elif node.operator in _OTHERS and not node.operator.startswith(_BLOCKED):
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
        *(f"{_BLOCKED}{name}" for name in ("ReorderInput", "ReorderOutput")),
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
        """Yield what ``node`` is on plain tensors."""
        operator = node.operator.removeprefix(_BLOCKED)
        if operator.startswith("Reorder") and node.attributes.get("channels_last"):
            yield from self._turned(node, operator)
        elif operator == _SUM_NORMALIZED:
            yield from _summed(node)
        elif operator == "ReorderOutput":
            yield replace(node, operator="Identity", attributes={})
        elif operator == "ReorderInput":
            yield self._first_channels(node)
        elif node.operator == f"{_BLOCKED}Conv":
            yield self._convolution(node)
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

    def _convolution(self, node: Node) -> Node:
        """Return a blocked convolution with plain weights, if they are constants."""
        x, weight, *others = node.inputs
        attributes = dict(node.attributes)
        if weight in self._constants:
            plain = plain_weight(np.asarray(self._constants[weight]), self._block)
            rows = self._channels.kept(node.output)
            depth = self._channels.kept(x) if plain.shape[1] > 1 else None
            weight = f"{node.output}/weight"
            self._constants[weight] = np.ascontiguousarray(plain[:rows, :depth])
            if attributes.get("group", 1) > 1 and plain.shape[1] == 1:
                attributes["group"] = len(self._constants[weight])
            if others and others[0]:
                bias = np.asarray(self._constants[others[0]])[:rows]
                others[0] = f"{node.output}/bias"
                self._constants[others[0]] = bias
        inputs = (x, weight, *others)
        return replace(node, operator=_FUSED[0], inputs=inputs, attributes=attributes)


def _summed(node: Node) -> Iterator[Node]:
    """Yield a layer normalisation of a sum, and of a bias if there is one, as nodes of their own."""
    value, other, scale, shift, bias = (*node.inputs, "", "")[:5]
    outputs = (*node.outputs, "", "", "")
    whole = outputs[3] or f"{node.output}/sum"
    before = f"{whole}/0" if bias else whole
    yield Node("Add", (value, other), (before,), {}, 14, node.label)
    if bias:
        yield Node("Add", (before, bias), (whole,), {}, 14, node.label)
    given = {"axis": -1, "epsilon": node.attributes.get("epsilon", 1e-12)}
    inputs = (whole, scale, shift) if shift else (whole, scale)
    yield Node("LayerNormalization", inputs, (node.output,), given, 17, node.label)


def _with_plain_softmax(network: Network, block: int) -> Network:
    """Return ``network`` with each softmax along blocks as one along channels.

    Raises:
        ExportError: another operator reads a tensor in blocks; the message names the node.
    """
    makers = {node.output: node for node in network.nodes}
    found = {
        node.output: softmax
        for node in network.nodes
        if (softmax := _along_channels(node, makers, network.constants, block)) is not None
    }
    nodes = tuple(found.get(node.output, node) for node in network.nodes)
    gone = {
        name
        for node in network.nodes
        if node.output in found
        for name in (node.inputs[0], makers[node.inputs[0]].inputs[0])
    }
    plain = replace(network, nodes=tuple(node for node in nodes if node.output not in gone))
    _check(plain)
    return plain


def _along_channels(
    last: Node, makers: Mapping[str, Node], constants: Mapping[str, NDArray[Any]], block: int
) -> Node | None:
    """Return what ``last`` ends, if it is a softmax on pixels [batch, rows, columns, block] of a tensor."""
    steps = [last]
    while len(steps) < len(_PATTERN) and steps[0].inputs[0] in makers:
        steps.insert(0, makers[steps[0].inputs[0]])
    if tuple(step.operator for step in steps) != _PATTERN:
        return None
    first, softmax, _ = steps
    pixels, image = (constants.get(step.inputs[1]) for step in (first, last))
    if pixels is None or image is None or softmax.attributes.get("axis") != _LAST_AXIS:
        return None
    batch, *size = pixels[:-1]
    if pixels[-1] != block or not np.array_equal(image, (batch, block, *size)):
        return None
    return replace(
        softmax,
        inputs=first.inputs[:1],
        outputs=last.outputs,
        attributes={"axis": _CHANNEL_AXIS},
        opset=_SOFTMAX_OPSET,
    )


def _check(network: Network) -> None:
    """Check that nothing reads a tensor in blocks that is not known to be the same on a plain one."""
    in_blocks: set[str] = set()
    for node in network.nodes:
        if node.operator.startswith(_BLOCKED):
            if node.operator != f"{_BLOCKED}ReorderOutput":
                in_blocks.update(node.outputs)
        elif in_blocks.isdisjoint(node.inputs) or _is_gate(node, network.constants):
            continue
        elif _moves(node):
            in_blocks.update(node.outputs)
        else:
            raise ExportError(
                f"{network.name}: node {node.label!r} ({node.operator}): it reads channels in blocks, in "
                "an order that plain tensors do not have"
            )


def _moves(node: Node) -> bool:
    """Return whether ``node`` is the same on plain tensors and makes one in the layout that it reads."""
    operator = node.operator.rpartition(".")[2]
    along_channels = node.attributes.get("axis") == _CHANNEL_AXIS
    return operator in _MOVES or (operator == "Softmax" and along_channels)


def _is_gate(node: Node, constants: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether ``node`` makes weights [channels, 1, 1, 1] of one pixel, which has no other order."""
    shape = constants.get(node.inputs[1]) if node.operator == "Reshape" else None
    return shape is not None and len(shape) == _LAST_AXIS + 1 and all(n == 1 for n in shape[1:])
