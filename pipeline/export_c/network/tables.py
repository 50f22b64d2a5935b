"""Bytes of which other bytes are made, each of one (models/compiler/optimising/byte_tables.py), in C.

Neither the floats of an activation nor its factor need memory there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from models.compiler.optimising.byte_tables import (
    KINDS,
    ON_ELEMENTS,
    READ_BYTES,
    region_of,
    table_of,
)
from models.network.node import Node
from models.network.operators.on_bytes import TABLE
from models.network.operators.quantised import BYTES
from pipeline.export_c.network.network import Network

#: Where their inputs of bytes are, and from each to its zero point.
_OF_DATA = (0, 3)
_TO_ZERO = 2

Constants = Mapping[str, NDArray[Any]]


def with_tables(network: Network) -> Network:
    """Return ``network`` with each byte that is made of one byte looked up."""
    constants = dict(network.constants)
    numbers = {node.output: node for node in network.nodes if node.operator == "Cast"}
    operators = {
        node.output: (place, _as_onnx(node))
        for place, node in enumerate(network.nodes)
        if _name(node) in ON_ELEMENTS
    }
    versions = _opsets(network.nodes)
    nodes: list[Node] = []
    tables: dict[str, tuple[str, NDArray[Any]]] = {}
    for node in network.nodes:
        found = _written(node, numbers, constants)
        if found is None and node.output in operators:
            region = region_of(
                operators[node.output][1], operators, constants, partial(_bytes_of, constants)
            )
            if region is not None:
                found = region.source, table_of(region, constants, versions)
        if found is None:
            nodes.append(node)
            continue
        source, table = found
        if source in tables:
            source, first = tables[source]
            table = table[first.view(np.uint8)]
        name = f"{node.output}/table"
        constants[name], tables[node.output] = table, (source, table)
        nodes.append(replace(node, operator=TABLE, inputs=(source, name), attributes={}))
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
    if node.operator != "Gather" or node.inputs[1] not in numbers:
        return None
    table = constants.get(node.inputs[0])
    if table is None or table.shape != (BYTES,) or table.dtype.name not in KINDS:
        return None
    return numbers[node.inputs[1]].inputs[0], table


def _bytes_of(constants: Constants, source: str, nodes: Sequence[onnx.NodeProto]) -> str | None:
    """Return the dtype of ``source`` if ``nodes`` read it as bytes."""
    for node in nodes:
        for place in _OF_DATA if node.op_type in READ_BYTES else ():
            if source in node.input[place : place + 1]:
                zero = constants.get(node.input[place + _TO_ZERO])
                return zero.dtype.name if zero is not None and zero.dtype.name in KINDS else None
    return None
