"""What operators do to tensors in blocks that are no convolutions (models/compiler/optimising/blocked.py).

Those on elements, Concat and Split are the same on plain tensors. A softmax along channels that are one
block is a softmax along the rows of the same memory, and becomes one along channels again. Anything else
reads blocks in a way that is not known here, and plain tensors would give it other numbers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.node import Node
from models.network.operators.elements import POINTWISE
from pipeline.export_c.errors import ExportError
from pipeline.export_c.network.network import Network

BLOCKED = "com.microsoft.nchwc."
_CHANNEL_AXIS = 1
_LAST_AXIS = 3
_SOFTMAX_OPSET = 13
_PATTERN = ("Reshape", "Softmax", "Reshape")
_MOVES = frozenset((*POINTWISE, "Concat", "Split"))


def with_plain_softmax(network: Network, block: int) -> Network:
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
        if node.operator.startswith(BLOCKED):
            if node.operator != f"{BLOCKED}ReorderOutput":
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
