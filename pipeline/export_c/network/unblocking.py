"""A network on plain tensors, of one in ONNX Runtime's blocked layout (NCHWc).

Reorders go, weights get their order back, and channels that only fill a block are left out: the manifest
says of which values there are some (``used_channels``), blocked or not. They change no other channel.

Operators on elements, Concat and Split are the same on blocked tensors as on plain ones
(models/compiler/optimising/blocked.py), and so is a softmax along channels, which the compiler turned.
Anything else reads blocks in a way that is not known here, and plain tensors would give it other numbers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.catalogue import traits_of
from models.network.names import NCHWC, Op
from models.network.node import Node
from models.packs.manifest import Manifest
from models.packs.records.pieces import TurnedSoftmax
from pipeline.export_c.network.pack_network import ExportError, Network

# The layout in blocks of channels (NCHWc) that processors compute convolutions in.
#
# A blocked tensor has the shape [N, C, ...] with C a multiple of the block b, but its bytes are those of
# [N, C / b, ..., b].


def plain(x: NDArray[Any], block: int) -> NDArray[Any]:
    """Return the plain tensor [N, C, ...] whose blocked form ``x`` is.

    Raises:
        ValueError: C is not a multiple of ``block``.
    """
    batch, channels, *size = x.shape
    blocks = x.reshape(batch, channels // block, *size, block)
    return np.moveaxis(blocks, -1, 2).reshape(x.shape)


def plain_weight(weight: NDArray[Any], block: int) -> NDArray[Any]:
    """Return the plain weight [O, I, ...] of a blocked one.

    Its bytes are those of [O / b, I / b, ..., b of I, b of O], or, with less than a block of input
    channels (a first layer, one channel a group), of [O / b, I, ..., b of O].
    """
    rows, depth, *kernel = weight.shape
    if depth < block:
        split = weight.reshape(rows // block, depth, *kernel, block)
        return np.moveaxis(split, -1, 1).reshape(weight.shape)
    split = weight.reshape(rows // block, depth // block, *kernel, block, block)
    return np.moveaxis(split, (-1, -2), (1, 3)).reshape(weight.shape)


# The network, node by node.

_TO_PLANES, _TO_PIXELS = [0, 3, 1, 2], [0, 2, 3, 1]
_FACTORS = (-1, 1, 1, 1)


def plain_network(network: Network, manifest: Manifest) -> Network:
    """Return what ``network``, of the pack of ``manifest``, computes on plain tensors.

    Raises:
        ExportError: an operator reads a tensor in blocks, and would make another one of a plain one.
    """
    whole = _with_softmaxes(network, manifest.turned_softmaxes)
    translation = _Translation(whole, manifest.used_channels, manifest.target.block)
    nodes = tuple(item for node in whole.nodes for item in translation.nodes(node))
    return replace(whole, nodes=nodes, constants=translation.constants)


def _with_softmaxes(network: Network, turned: Sequence[TurnedSoftmax]) -> Network:
    """Return ``network`` with the softmaxes that the compiler turned as they were."""
    makers = {node.output: node for node in network.nodes}
    whole = {}
    for item in turned:
        last = makers.get(item.output)
        rows = makers.get(last.inputs[0]) if last is not None else None
        if rows is None or Op.Softmax not in rows.operator:
            raise ExportError(f"{network.name}: no softmax makes {item.output!r}")
        names, axis = ((item.source,), (item.output,)), {"axis": item.axis}
        whole[item.output] = Node(rows.operator, *names, axis, rows.opset, rows.label)
    nodes = tuple(whole.get(node.output, node) for node in network.nodes)
    return replace(network, nodes=nodes).live()


class _Translation:
    """Lets nodes read and make planes instead of blocks; ``constants``: with those that they need.

    ``used``: how many channels values have, where others only fill. ``_in_blocks``: what was in blocks.
    """

    def __init__(self, network: Network, used: Mapping[str, int], block: int) -> None:
        self.constants = dict(network.constants)
        self._name = network.name
        self._used = used
        self._block = block
        self._in_blocks: set[str] = set()

    def nodes(self, node: Node) -> Iterator[Node]:
        """Yield what ``node`` is on plain tensors."""
        if node.operator == Op.ReorderOutput:
            yield from self._left(node)
        elif node.operator.startswith(NCHWC):
            self._in_blocks.update(node.outputs)
            yield self._in_planes(node)
        elif self._fills(node):
            yield self._with_used(node, self.constants.get)
        elif not self._in_blocks.isdisjoint(node.inputs):
            self._check(node)
            yield node
        elif node.operator == Op.SkipLayerNormalization:
            yield from _summed(node)
        else:
            yield node

    def _fills(self, node: Node) -> bool:
        """Return whether ``node`` is a plain convolution with channels that only fill."""
        is_plain = traits_of(node.operator).computes(Op.Conv)
        return is_plain and any(name in self._used for name in (node.inputs[0], node.output))

    def _left(self, node: Node) -> Iterator[Node]:
        """Yield what leaves the blocks: planes without those that only fill, or pixels of these."""
        turns = node.attributes.get("channels_last")
        planes = f"{node.output}/planes" if turns else node.output
        bounds = {"starts": [0], "ends": [node.attributes["channels"]], "axes": [1]}
        yield Node(Op.Slice, node.inputs, (planes,), bounds, 1, node.label)
        if turns:
            yield _turned(replace(node, inputs=(planes,)), _TO_PIXELS)

    def _check(self, node: Node) -> None:
        """Check that ``node``, which reads blocks and is no operator of theirs, is the same on planes."""
        record = traits_of(node.operator)
        shape = self.constants.get(node.inputs[1]) if record.of is Op.Reshape else None
        if shape is not None and tuple(shape) == _FACTORS:
            return  # of a gate: one pixel has no other order
        is_same = record.function or record.of is Op.Concat or record.of is Op.Split
        if not is_same and (record.of, node.attributes.get("axis")) != (Op.Softmax, 1):
            raise ExportError(
                f"{self._name}: node {node.label!r} ({node.operator}): it reads channels in blocks, in "
                "an order that plain tensors do not have"
            )
        self._in_blocks.update(node.outputs)

    def _in_planes(self, node: Node) -> Node:
        """Return what makes planes where ``node`` makes blocks; pools and interpolations are the same."""
        if node.operator == Op.BlockedConv:
            return self._convolution(node)
        if node.operator != Op.ReorderInput:
            return node
        if node.attributes.get("channels_last"):
            return _turned(node, _TO_PLANES)
        return replace(node, operator=Op.Identity, attributes={})

    def _convolution(self, node: Node) -> Node:
        """Return a blocked convolution with plain weights, if they are constants."""

        def weights(name: str) -> NDArray[Any] | None:
            constant = self.constants.get(name)
            return None if constant is None else plain_weight(np.asarray(constant), self._block)

        return self._with_used(node, weights)

    def _with_used(self, node: Node, weights: Callable[[str], NDArray[Any] | None]) -> Node:
        """Return a convolution of the channels that are used; ``weights``: plain ones, by their name."""
        x, weight, *others = node.inputs
        attributes = dict(node.attributes)
        rows, depth = self._used.get(node.output), self._used.get(x)
        if rows is not None and attributes.get("group", 1) > 1:
            attributes["group"] = rows
        plain = weights(weight)
        if plain is not None:
            weight = f"{node.output}/weight"
            self.constants[weight] = np.ascontiguousarray(np.asarray(plain)[:rows, :depth])
            if others and others[0]:
                bias = np.asarray(self.constants[others[0]])[:rows]
                others[0] = f"{node.output}/bias"
                self.constants[others[0]] = bias
        return replace(node, inputs=(x, weight, *others), attributes=attributes)


def _turned(node: Node, perm: list[int]) -> Node:
    return replace(node, operator=Op.Transpose, attributes={"perm": perm})


def _summed(node: Node) -> Iterator[Node]:
    """Yield a layer normalisation of a sum, and of a bias if there is one, as nodes of their own."""
    value, other, scale, shift, bias = (*node.inputs, "", "")[:5]
    outputs = (*node.outputs, "", "", "")
    whole = outputs[3] or f"{node.output}/sum"
    before = f"{whole}/0" if bias else whole
    yield Node(Op.Add, (value, other), (before,), {}, 14, node.label)
    if bias:
        yield Node(Op.Add, (before, bias), (whole,), {}, 14, node.label)
    attributes = {"axis": -1, "epsilon": node.attributes.get("epsilon", 1e-12)}
    inputs = (whole, scale, shift) if shift else (whole, scale)
    yield Node(Op.LayerNormalization, inputs, (node.output,), attributes, 17, node.label)
