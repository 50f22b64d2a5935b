"""Quantised layers whole again: compilers take them apart so that their weights can stream.

A convolution on channels-last tensors becomes a product of matrices (QGemm) on its windows, which Pad and
Gather put together, and a large product several, which Concat joins. In C neither the windows nor the parts
need memory.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.node import Node
from models.network.operators.on_bytes import TABLE
from models.packs.records.pieces import WindowProduct
from pipeline.export_c.errors import ExportError
from pipeline.export_c.network.network import Network

_PRODUCT = "com.microsoft.QGemm"
_CONVOLUTION = "com.microsoft.QLinearConv"
_WEIGHT = 3
#: Inputs of a product by its filters: weights, scales, zero points, biases.
_OF_FILTERS = (_WEIGHT, 4, 5, 6)

Constants = Mapping[str, NDArray[Any]]


def with_whole_products(network: Network, products: Sequence[WindowProduct]) -> Network:
    """Return ``network`` with parts of products joined, and ``products`` as the convolutions they are.

    Its tables are known (``with_tables``): one behind each part is one behind the whole.
    """
    return _convolutions(_joined(_looked_up_whole(network)), products)


def _looked_up_whole(network: Network) -> Network:
    """Return ``network`` with each table that all parts of a tensor are looked up in behind the whole."""
    constants = network.constants
    makers = {node.output: node for node in network.nodes}
    readers = network.readers()
    nodes: list[Node] = []
    for node in network.nodes:
        parts = [makers[name] for name in node.inputs if name in makers and readers[name] == 1]
        tables = [part.inputs[1] for part in parts if part.operator == TABLE]
        if node.operator != "Concat" or len(tables) < len(node.inputs):
            nodes.append(node)
            continue
        if any(not np.array_equal(constants[name], constants[tables[0]]) for name in tables):
            nodes.append(node)
            continue
        before = f"{node.output}/bytes"
        sources = tuple(part.inputs[0] for part in parts)
        nodes.append(replace(node, inputs=sources, outputs=(before,)))
        nodes.append(replace(parts[0], inputs=(before, tables[0]), outputs=node.outputs))
    return replace(network, nodes=tuple(nodes)).live()


def _joined(network: Network) -> Network:
    constants = dict(network.constants)
    makers = {node.output: node for node in network.nodes}
    readers = network.readers()
    nodes: list[Node] = []
    for node in network.nodes:
        parts = [makers[name] for name in node.inputs if name in makers and readers[name] == 1]
        apart = node.operator == "Concat" and len(parts) == len(node.inputs) > 1
        whole = _product(node, parts, constants) if apart else None
        nodes.append(whole or node)
    return replace(network, nodes=tuple(nodes), constants=constants).live()


def _product(node: Node, parts: list[Node], constants: dict[str, NDArray[Any]]) -> Node | None:
    """Return the product that ``parts`` are, whose results ``node`` joins; None: they are of no one."""
    first = parts[0]
    same = all(_shared(part, constants) == _shared(first, constants) for part in parts)
    if first.operator != _PRODUCT or not same or node.attributes.get("axis") not in {1, -1}:
        return None
    try:
        each = [_by_filter(part, constants) for part in parts]
    except (KeyError, ValueError):
        return None
    names = list(first.inputs)
    for position in each[0]:
        names[position] = f"{node.output}/{position}"
        constants[names[position]] = np.concatenate([arrays[position] for arrays in each])
    attributes = {**first.attributes, "transB": 1}
    inputs, label = tuple(names), node.label
    return replace(first, label=label, inputs=inputs, outputs=node.outputs, attributes=attributes)


def _shared(part: Node, constants: Constants) -> list[object]:
    """Return what products must have in common to be parts of one."""
    inputs = [
        constants[name].tobytes() if name in constants else name
        for position, name in enumerate(part.inputs)
        if position not in _OF_FILTERS or not name
    ]
    return [part.operator, part.attributes, *inputs]


def _by_filter(part: Node, constants: Constants) -> dict[int, NDArray[Any]]:
    """Return the inputs of a product that have a row or a number for each filter, by position.

    Raises:
        KeyError: one is not constant. ValueError: a bias is another for each row of the result.
    """
    names = enumerate(part.inputs)
    given = {at: constants[name] for at, name in names if at in _OF_FILTERS and name}
    weight = given[_WEIGHT] if part.attributes.get("transB", 0) else given[_WEIGHT].T
    numbers = {
        at: np.broadcast_to(array, (1, len(weight))).reshape(-1)
        for at, array in given.items()
        if at != _WEIGHT
    }
    return {_WEIGHT: weight, **numbers}


def _convolutions(network: Network, products: Sequence[WindowProduct]) -> Network:
    makers = {node.output: node for node in network.nodes}
    constants = dict(network.constants)
    whole: dict[str, tuple[Node, ...]] = {}
    for item in products:
        behind, product = _behind_product(makers.get(item.output), makers)
        if product is None:
            continue
        convolution = _convolution(product, item, constants)
        table = next((node for node in behind if node.operator == TABLE), None)
        whole[item.output] = (convolution,)
        if table is not None:
            before = f"{item.output}/bytes"
            looked_up = replace(table, inputs=(before, table.inputs[1]), outputs=(item.output,))
            whole[item.output] = (replace(convolution, outputs=(before,)), looked_up)
    nodes = (made for node in network.nodes for made in whole.get(node.output, (node,)))
    return replace(network, nodes=tuple(nodes), constants=constants).live()


def _behind_product(
    last: Node | None, makers: Mapping[str, Node]
) -> tuple[list[Node], Node | None]:
    """Return what is behind a product up to ``last``, and the product; None: there is none."""
    behind: list[Node] = []
    while last is not None and last.operator in {"Reshape", TABLE}:
        behind.append(last)
        last = makers.get(last.inputs[0])
    return behind, last if last is not None and last.operator == _PRODUCT else None


def _convolution(node: Node, item: WindowProduct, constants: dict[str, NDArray[Any]]) -> Node:
    """Return the convolution that the product ``node`` on the windows of ``item`` is."""
    _, scale, zero, weight, weight_scale, weight_zero, bias, *result = node.inputs
    matrix = constants[weight] if node.attributes.get("transB", 0) else constants[weight].T
    kernel = [axis.kernel for axis in item.windows]
    if matrix.shape[1] % math.prod(kernel):
        raise ExportError(
            f"node {node.label!r}: no weights {list(matrix.shape)} of windows {kernel}"
        )
    name = f"{item.output}/weight"
    constants[name] = np.moveaxis(matrix.reshape(len(matrix), *kernel, -1), -1, 1)
    attributes = {
        "channels_last": 1,
        "strides": [axis.stride for axis in item.windows],
        "dilations": [axis.dilation for axis in item.windows],
        "pads": [*(axis.before for axis in item.windows), *(axis.behind for axis in item.windows)],
    }
    inputs = (item.source, scale, zero, name, weight_scale, weight_zero, *result, bias)
    return Node(_CONVOLUTION, inputs, (item.output,), attributes, node.opset, node.label)
