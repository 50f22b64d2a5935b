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

from models.network.node import Node
from pipeline.export_c.network.network import Network

PRODUCT = "com.microsoft.QGemm"
#: A product on windows of its first input; then the pixels of each, and the product's other inputs.
WINDOWS = "windows of QGemm"
_ZERO, _WEIGHT = 2, 3
#: Inputs of a product by its filters: weights, scales, zero points, biases.
_OF_FILTERS = (_WEIGHT, 4, 5, 6)

Constants = Mapping[str, NDArray[Any]]


def with_whole_products(network: Network) -> Network:
    """Return ``network`` with parts of products joined, and products of windows as one node each."""
    return _with_windows(_joined(network))


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
    if first.operator != PRODUCT or not same or node.attributes.get("axis") not in {1, -1}:
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


def _with_windows(network: Network) -> Network:
    makers = {node.output: node for node in network.nodes}
    nodes = [_on_windows(node, makers, network.constants) or node for node in network.nodes]
    return replace(network, nodes=tuple(nodes)).live()


def _on_windows(node: Node, makers: Mapping[str, Node], constants: Constants) -> Node | None:
    """Return a product on gathered windows as one node of the tensor that they are of, else None."""
    if node.operator != "Reshape" or (product := makers.get(node.inputs[0])) is None:
        return None
    windows = makers.get(product.inputs[0])
    if product.operator != PRODUCT or windows is None or windows.operator != "Reshape":
        return None
    gathered = makers.get(windows.inputs[0])
    if gathered is None or gathered.operator != "Gather" or gathered.attributes.get("axis", 0):
        return None
    source = makers.get(gathered.inputs[0])
    if source is not None and _adds_a_zero(source, product.inputs[_ZERO], constants):
        source = makers.get(source.inputs[0])
    if source is None or source.operator != "Reshape" or node.inputs[1] not in constants:
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


def _adds_a_zero(node: Node, zero: str, constants: Constants) -> bool:
    """Return whether ``node`` puts one pixel of ``zero`` behind all others."""
    if node.operator != "Pad" or node.attributes.get("mode", "constant") not in {
        "constant",
        b"constant",
    }:
        return False
    widths, value = (constants.get(name) for name in (*node.inputs, "", "")[1:3])
    if widths is None or zero not in constants or any(node.inputs[3:]):
        return False
    of = 0 if value is None else value
    return widths.tolist() == [0, 0, 1, 0] and bool(np.all(constants[zero] == of))
