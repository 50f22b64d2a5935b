"""Quantised layers whole again: compilers take them apart so that their weights can stream.

A convolution on channels-last tensors becomes a product of matrices (QGemm) on its windows, which Pad and
Gather put together, and a large product several, which Concat joins. In C neither the windows nor the parts
need memory.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.export_c.network.network import Network, Node

PRODUCT = "com.microsoft.QGemm"
#: A product on windows of its first input; then the pixels of each, and the product's other inputs.
WINDOWS = "windows of QGemm"
_WEIGHT, _SCALE, _ZERO, _BIAS = 3, 4, 5, 6


def with_whole_products(network: Network) -> Network:
    """Return ``network`` with parts of products joined, and products of windows as one node each."""
    return _with_windows(_joined(network))


def _joined(network: Network) -> Network:
    constants = dict(network.constants)
    makers = {node.output: node for node in network.nodes}
    readers = network.readers()
    nodes: list[Node] = []
    for node in network.nodes:
        parts = [makers.get(name) for name in node.inputs]
        products = [part for part in parts if part is not None and part.operator == PRODUCT]
        apart = len(products) == len(parts) > 1 and all(
            readers[part.output] == 1 for part in products
        )
        if node.operator == "Concat" and apart and len({part.inputs[0] for part in products}) == 1:
            nodes.append(_product(node, products, constants))
        else:
            nodes.append(node)
    return replace(network, nodes=tuple(nodes), constants=constants).live()


def _product(node: Node, parts: list[Node], constants: dict[str, NDArray[Any]]) -> Node:
    """Return the product that ``parts`` are, whose results ``node`` joins."""
    first = parts[0]
    names = list(first.inputs)
    by_rows = bool(first.attributes.get("transB", 0))
    for position in (_WEIGHT, _SCALE, _ZERO, _BIAS):
        read = [part.inputs[position] for part in parts if position < len(part.inputs)]
        arrays = [np.asarray(constants[name]) for name in read if name]
        if len(arrays) == len(parts) and arrays[0].ndim:
            axis = 0 if by_rows or position != _WEIGHT else 1
            names[position] = f"{node.output}/{position}"
            constants[names[position]] = np.concatenate(arrays, axis)
    return replace(first, label=node.label, inputs=tuple(names), outputs=node.outputs)


def _with_windows(network: Network) -> Network:
    makers = {node.output: node for node in network.nodes}
    nodes = [_on_windows(node, makers, network.constants) or node for node in network.nodes]
    return replace(network, nodes=tuple(nodes)).live()


def _on_windows(
    node: Node, makers: Mapping[str, Node], constants: Mapping[str, NDArray[Any]]
) -> Node | None:
    """Return a product on gathered windows as one node of the tensor that they are of, else None."""
    if node.operator != "Reshape" or (product := makers.get(node.inputs[0])) is None:
        return None
    windows = makers.get(product.inputs[0])
    if product.operator != PRODUCT or windows is None or windows.operator != "Reshape":
        return None
    gathered = makers.get(windows.inputs[0])
    if gathered is None or gathered.operator != "Gather":
        return None
    source = makers.get(gathered.inputs[0])
    if source is not None and source.operator == "Pad":
        source = makers.get(source.inputs[0])
    if source is None or source.operator != "Reshape":
        return None
    shape = [int(n) for n in constants[node.inputs[1]]]
    inputs = (source.inputs[0], gathered.inputs[1], *product.inputs[1:])
    return replace(
        product,
        operator=WINDOWS,
        inputs=inputs,
        outputs=node.outputs,
        attributes={**product.attributes, "shape": shape},
    )
