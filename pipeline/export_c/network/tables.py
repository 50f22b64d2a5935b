"""Operators that make each byte of one byte become a table of 256, which ONNX Runtime fills: the same bits.

An activation of a quantised network is several of them: a byte as a float, HardSigmoid, a byte again, and
its product with the byte that was there first. In C neither the floats nor the factor need memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.network.operators.elements import POINTWISE
from models.runtime.sessions import open_session, session_options
from pipeline.export_c.network.network import Network, Node

#: Its inputs are bytes, and what each of them becomes, in the order of bytes as unsigned numbers.
TABLE = "table of bytes"
BYTES = 256
_KINDS = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
_OF_BYTES = frozenset(("QLinearAdd", "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid"))
_READ_BYTES = _OF_BYTES | {"DequantizeLinear"}
_MAKE_BYTES = _OF_BYTES | {"QuantizeLinear"}
_ON_ELEMENTS = POINTWISE | _READ_BYTES | _MAKE_BYTES
#: Where their inputs of bytes are, and from each to its zero point.
_OF_DATA = (0, 3)
_TO_ZERO = 2
_IR_VERSION = 9

Constants = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Region:
    """``nodes`` that make ``output`` of the bytes ``source`` alone, element by element."""

    nodes: Sequence[Node]
    source: str
    dtype: str
    output: str


def with_tables(network: Network) -> Network:
    """Return ``network`` with each byte that is made of one byte looked up."""
    constants = dict(network.constants)
    makers = {node.output: (place, node) for place, node in enumerate(network.nodes)}
    nodes: list[Node] = []
    tables: dict[str, tuple[str, NDArray[Any]]] = {}
    for node in network.nodes:
        region = _region(node, makers, constants)
        if region is None:
            nodes.append(node)
            continue
        source, table = region.source, table_of(region, constants)
        if source in tables:
            source, first = tables[source]
            table = table[first.view(np.uint8)]
        name = f"{node.output}/table"
        constants[name], tables[node.output] = table, (source, table)
        nodes.append(Node(TABLE, node.label, (source, name), node.outputs, {}, node.opset))
    return replace(network, nodes=tuple(nodes), constants=constants).live()


def _region(
    last: Node, makers: Mapping[str, tuple[int, Node]], constants: Constants
) -> Region | None:
    """Return what ends with ``last`` and reads one tensor of bytes, the latest there is; None: nothing."""
    if _name(last) not in _MAKE_BYTES or not _is_on_elements(last, constants):
        return None
    inside, read = [last], _read(last, constants)
    while True:
        if len(read) == 1:
            (source,) = read
            dtype = _bytes_of(source, inside, constants)
            if dtype is not None:
                return Region(inside[::-1], source, dtype, last.output)
        latest = max(read, key=lambda name: makers[name][0] if name in makers else -1, default="")
        if latest not in makers or not _is_on_elements(makers[latest][1], constants):
            return None
        inside.append(makers[latest][1])
        read = read - {latest} | _read(inside[-1], constants)


def _name(node: Node) -> str:
    return node.operator.rpartition(".")[2]


def _read(node: Node, constants: Constants) -> set[str]:
    return {name for name in node.inputs if name and name not in constants}


def _is_on_elements(node: Node, constants: Constants) -> bool:
    """Return whether elements of ``node`` are made of those at the same place and of single constants."""
    held = [np.asarray(constants[name]) for name in node.inputs if name in constants]
    single = all(array.size == 1 and array.ndim <= 1 for array in held)
    return _name(node) in _ON_ELEMENTS and single and len(node.outputs) == 1


def _bytes_of(source: str, nodes: Sequence[Node], constants: Constants) -> str | None:
    """Return the dtype of ``source`` if ``nodes`` read it as bytes."""
    for node in nodes:
        for place in _OF_DATA if _name(node) in _READ_BYTES else ():
            if source in node.inputs[place : place + 1]:
                zero = constants.get(node.inputs[place + _TO_ZERO])
                return zero.dtype.name if zero is not None and zero.dtype.name in _KINDS else None
    return None


def table_of(region: Region, constants: Constants) -> NDArray[Any]:
    """Return what ``region`` makes of each byte, in the order of bytes as unsigned numbers."""
    versions: dict[str, int] = {"": 1}
    nodes = []
    for node in region.nodes:
        domain = node.operator.rpartition(".")[0]
        versions[domain] = max(versions.get(domain, 1), node.opset)
        given = {**node.attributes, **({"axis": 0} if "axis" in node.attributes else {})}
        nodes.append(
            helper.make_node(_name(node), node.inputs, node.outputs, domain=domain, **given)
        )
    names = {name for node in region.nodes for name in node.inputs if name in constants}
    graph = helper.make_graph(
        nodes,
        "table",
        [helper.make_tensor_value_info(region.source, _KINDS[region.dtype], [BYTES])],
        [helper.make_empty_tensor_value_info(region.output)],
        [numpy_helper.from_array(np.asarray(constants[name]), name) for name in sorted(names)],
    )
    opsets = [helper.make_opsetid(*item) for item in versions.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
    session = open_session(model.SerializeToString(), session_options(optimise=False))
    numbers = np.arange(BYTES, dtype=np.uint8).view(region.dtype)
    return np.asarray(session.run(None, {region.source: numbers})[0])
