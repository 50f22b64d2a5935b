"""Quantised networks in C: layers whole again, bytes made of bytes by tables, ports as bytes.

A convolution on channels-last tensors becomes a product of matrices (QGemm) on its windows, which Pad and
Gather put together, and a large product several, which Concat joins. In C neither the windows nor the parts
need memory.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from models.compiler.optimising.byte_tables import (
    KINDS,
    is_on_elements,
    reads_bytes,
    region_of,
    table_of,
)
from models.network.catalogue import traits_of
from models.network.names import Op, op_of
from models.network.node import Node
from models.network.operators.quantised import BYTES
from models.packs.records.pieces import WindowProduct
from models.packs.records.ports import Port
from pipeline.export_c.network.pack_network import FLIPS, ExportError, Network, Scaled, scaled

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
        tables = [part.inputs[1] for part in parts if part.operator == Op.ByteTable]
        if node.operator != Op.Concat or len(tables) < len(node.inputs):
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
        apart = node.operator == Op.Concat and len(parts) == len(node.inputs) > 1
        whole = _product(node, parts, constants) if apart else None
        nodes.append(whole or node)
    return replace(network, nodes=tuple(nodes), constants=constants).live()


def _product(node: Node, parts: list[Node], constants: dict[str, NDArray[Any]]) -> Node | None:
    """Return the product that ``parts`` are, whose results ``node`` joins; None: of no single product."""
    first = parts[0]
    same = all(_shared(part, constants) == _shared(first, constants) for part in parts)
    if first.operator != Op.QGemm or not same or node.attributes.get("axis") not in {1, -1}:
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
    arrays = {at: constants[name] for at, name in names if at in _OF_FILTERS and name}
    weight = arrays[_WEIGHT] if part.attributes.get("transB", 0) else arrays[_WEIGHT].T
    numbers = {
        at: np.broadcast_to(array, (1, len(weight))).reshape(-1)
        for at, array in arrays.items()
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
        table = next((node for node in behind if node.operator == Op.ByteTable), None)
        whole[item.output] = (convolution,)
        if table is not None:
            before = f"{item.output}/bytes"
            looked_up = replace(table, inputs=(before, table.inputs[1]), outputs=(item.output,))
            whole[item.output] = (replace(convolution, outputs=(before,)), looked_up)
    nodes = (
        node_in_place for node in network.nodes for node_in_place in whole.get(node.output, (node,))
    )
    return replace(network, nodes=tuple(nodes), constants=constants).live()


def _behind_product(
    last: Node | None, makers: Mapping[str, Node]
) -> tuple[list[Node], Node | None]:
    """Return what is behind a product up to ``last``, and the product; None: there is none."""
    behind: list[Node] = []
    while last is not None and (traits_of(last.operator).reshapes or last.operator == Op.ByteTable):
        behind.append(last)
        last = makers.get(last.inputs[0])
    return behind, last if last is not None and last.operator == Op.QGemm else None


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
    return Node(Op.MicrosoftQLinearConv, inputs, (item.output,), attributes, node.opset, node.label)


# Bytes of which other bytes are made, each of one (models/compiler/optimising/byte_tables.py), in C.
#
# Neither the floats of an activation nor its factor need memory there.

#: Where their inputs of bytes are, and from each to its zero point.
_OF_DATA = (0, 3)
_TO_ZERO = 2


def with_tables(network: Network) -> Network:
    """Return ``network`` with each byte that is made of one byte looked up."""
    constants = dict(network.constants)
    numbers = {node.output: node for node in network.nodes if node.operator == Op.Cast}
    operators = {
        node.output: (place, _as_onnx(node))
        for place, node in enumerate(network.nodes)
        if is_on_elements(node.operator)
    }
    versions = _opsets(network.nodes)
    nodes: list[Node] = []
    tables: dict[str, tuple[str, NDArray[Any]]] = {}
    for node in network.nodes:
        lookup = _written(node, numbers, constants)
        if lookup is None and node.output in operators:
            region = region_of(
                operators[node.output][1], operators, constants, partial(_bytes_of, constants)
            )
            if region is not None:
                lookup = region.source, table_of(region, constants, versions)
        if lookup is None:
            nodes.append(node)
            continue
        source, table = lookup
        if source in tables:
            source, first = tables[source]
            table = table[first.view(np.uint8)]
        name = f"{node.output}/table"
        constants[name], tables[node.output] = table, (source, table)
        nodes.append(replace(node, operator=Op.ByteTable, inputs=(source, name), attributes={}))
    return replace(network, nodes=tuple(nodes), constants=constants).live()


def _as_onnx(node: Node) -> onnx.NodeProto:
    """Return ``node`` as ONNX has it."""
    domain = node.operator.rpartition(".")[0]
    return helper.make_node(
        _name(node), node.inputs, node.outputs, domain=domain, **node.attributes
    )


def _opsets(nodes: Sequence[Node]) -> dict[str, int]:
    """Return the newest version of each domain of operators that ``nodes`` have."""
    versions = {"": 1}
    for node in nodes:
        domain = node.operator.rpartition(".")[0]
        versions[domain] = max(versions.get(domain, 1), node.opset)
    return versions


def _name(node: Node) -> str:
    return node.operator.rpartition(".")[2]


def _written(
    node: Node, numbers: Mapping[str, Node], constants: Constants
) -> tuple[str, NDArray[Any]] | None:
    """Return the bytes and the table that the compiler wrote as Cast and Gather; None: others."""
    if node.operator != Op.Gather or node.inputs[1] not in numbers:
        return None
    table = constants.get(node.inputs[0])
    if table is None or table.shape != (BYTES,) or table.dtype.name not in KINDS:
        return None
    return numbers[node.inputs[1]].inputs[0], table


def _bytes_of(constants: Constants, source: str, nodes: Sequence[onnx.NodeProto]) -> str | None:
    """Return the dtype of ``source`` if ``nodes`` read it as bytes."""
    for node in nodes:
        for place in _OF_DATA if reads_bytes(op_of(node)) else ():
            if source in node.input[place : place + 1]:
                zero = constants.get(node.input[place + _TO_ZERO])
                return zero.dtype.name if zero is not None and zero.dtype.name in KINDS else None
    return None


# Inputs and outputs as bytes: what a quantised network does first and last is left to the caller.
#
# Then an image takes a quarter of the memory, and a caller that has bytes already need not make floats of
# them.


def with_byte_ports(network: Network) -> Network:
    """Return ``network`` with ports that are bytes where it quantises them first, or back last.

    Raises:
        ExportError: it does so with none.
    """
    converted = dict(_inputs(network)) | dict(_outputs(network))
    if not converted:
        raise ExportError(
            f"{network.name}: no input is quantised first and no output back last, so none can be bytes"
        )
    gone = {name for names, _ in converted.values() for name in names}
    nodes = tuple(
        replace(node, operator=Op.Identity, inputs=node.inputs[:1], attributes={})
        if node.output in gone
        else node
        for node in network.nodes
    )
    quantised = {port: how for port, (_, how) in converted.items()}
    ports = [
        tuple(_as_bytes(port, quantised) for port in side)
        for side in (network.inputs, network.outputs)
    ]
    return replace(network, inputs=ports[0], outputs=ports[1], nodes=nodes, quantised=quantised)


def _as_bytes(port: Port, found: Mapping[str, Scaled]) -> Port:
    how = found.get(port.name)
    if how is None:
        return port
    return Port(name=port.name, dtype=how.dtype, shape=port.shape, value=port.value)


#: A port, the values that its quantisation makes, and how these are.
_Found = tuple[str, tuple[set[str], Scaled]]


def _inputs(network: Network) -> Iterator[_Found]:
    for port in network.inputs:
        scales: dict[str, Scaled] = {}
        if _quantised(port.name, network, scales):
            first = next(iter(scales.values()))
            if len({(how.dtype, how.one, how.zero) for how in scales.values()}) == 1:
                yield port.name, (set(scales), first)


def _quantised(name: str, network: Network, made: dict[str, Scaled]) -> bool:
    """Return whether all that reads ``name`` quantises it; note in ``made`` what it makes, and how."""
    readers = [node for node in network.nodes if name in node.inputs]
    if any(port.name == name for port in network.outputs):
        return False
    for node in readers:
        if traits_of(node.operator).of is Op.QuantizeLinear and node.inputs[0] == name:
            how = _scaled(node, network)
            if how is None:
                return False
            made[node.output] = how
        elif not _moves(node) or not all(
            _quantised(each, network, made) for each in node.outputs if each
        ):
            return False
    return bool(readers)


def _outputs(network: Network) -> Iterator[_Found]:
    makers = {name: node for node in network.nodes for name in node.outputs}
    readers = network.readers()
    for port in network.outputs:
        name = port.name
        while readers[name] == 1 and _only_moves(makers.get(name)):
            name = makers[name].inputs[0]
        maker = makers.get(name)
        if maker is None or readers[name] != 1:
            continue
        if traits_of(maker.operator).of is not Op.DequantizeLinear:
            continue
        how = _scaled(maker, network)
        if how is not None and maker.inputs[0] not in network.constants:
            yield port.name, ({name}, how)


def _only_moves(node: Node | None) -> bool:
    """Return whether ``node`` makes its one output of elements of its first input."""
    return node is not None and _moves(node) and len(node.outputs) == 1


def _moves(node: Node) -> bool:
    traits = traits_of(node.operator)
    return traits.permutes or traits.computes(Op.Slice) or traits.computes(Op.Split)


def _scaled(node: Node, network: Network) -> Scaled | None:
    """Return the one scale and zero point of ``node``, None: it has several, or no bytes."""
    scale, zeros = (network.constants.get(name) for name in (*node.inputs, "")[1:3])
    if scale is None or zeros is None or scale.size > 1 or zeros.dtype.name not in FLIPS:
        return None
    return scaled(scale, zeros)
