"""Quantised networks in C: bytes made of bytes by tables, inputs and outputs as bytes.

A byte of which another one is made is looked up (models/compiler/optimising/byte_tables.py), so neither the
floats of an activation nor its factor need memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.compiler.optimising.byte_tables import (
    is_on_elements,
    reads_bytes,
    region_of,
    table_of,
)
from models.graphs.graph import Graph
from models.network.catalogue import traits_of
from models.network.names import Op
from models.network.node import NamedTensor, Node
from models.network.operators.on_bytes import BYTE_TYPES
from pipeline.export_c.network.network import FLIPS, ExportError, Network, Scaled, scaled

Constants = Mapping[str, NDArray[Any]]

#: Where their inputs of bytes are, and from each to its zero point.
_OF_DATA = (0, 3)
_TO_ZERO = 2


def with_tables(network: Network, graph: Graph) -> Network:
    """Return ``network``, of ``graph``, with each byte that is made of one byte looked up."""
    constants = dict(network.constants)
    operators = {
        node.output: (place, node)
        for place, node in enumerate(graph.nodes)
        if is_on_elements(node.operator)
    }
    nodes: list[Node] = []
    tables: dict[str, tuple[str, NDArray[Any]]] = {}
    for node in network.nodes:
        region = None
        if node.output in operators:
            _, last = operators[node.output]
            region = region_of(last, operators, constants, partial(_bytes_of, constants))
        if region is None:
            nodes.append(node)
            continue
        source, table = region.source, table_of(region, constants, graph.opsets)
        if source in tables:
            source, first = tables[source]
            table = table[first.view(np.uint8)]
        name = f"{node.output}/table"
        constants[name], tables[node.output] = table, (source, table)
        nodes.append(replace(node, operator=Op.ByteTable, inputs=(source, name), attributes={}))
    return replace(network, nodes=tuple(nodes), constants=constants).live()


def _bytes_of(constants: Constants, source: str, nodes: Sequence[Node]) -> str | None:
    """Return the dtype of ``source`` if ``nodes`` read it as bytes."""
    for node in nodes:
        for place in _OF_DATA if reads_bytes(node.operator) else ():
            if source in node.inputs[place : place + 1]:
                zero = constants.get(node.inputs[place + _TO_ZERO])
                return (
                    zero.dtype.name if zero is not None and zero.dtype.name in BYTE_TYPES else None
                )
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


def _as_bytes(port: NamedTensor, found: Mapping[str, Scaled]) -> NamedTensor:
    how = found.get(port.name)
    return port if how is None else replace(port, dtype=how.dtype)


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
        traits = traits_of(node.operator)
        if node.inputs[0] != name:
            return False
        if traits.of is Op.QuantizeLinear:
            how = _scaled(node, network)
            if how is None:
                return False
            made[node.output] = how
        elif not traits.copies or not all(
            _quantised(each, network, made) for each in node.outputs if each
        ):
            return False
    return bool(readers)


def _outputs(network: Network) -> Iterator[_Found]:
    makers = {name: node for node in network.nodes for name in node.outputs}
    readers = network.readers()
    for port in network.outputs:
        name = port.name
        maker = makers.get(name)
        while readers[name] == 1 and maker is not None and _only_copies(maker):
            name = maker.inputs[0]
            maker = makers.get(name)
        if maker is None or readers[name] != 1:
            continue
        if traits_of(maker.operator).of is not Op.DequantizeLinear:
            continue
        how = _scaled(maker, network)
        if how is not None and maker.inputs[0] not in network.constants:
            yield port.name, ({name}, how)


def _only_copies(node: Node) -> bool:
    """Return whether ``node`` makes its one output of elements of its first input."""
    return traits_of(node.operator).copies and len(node.outputs) == 1


def _scaled(node: Node, network: Network) -> Scaled | None:
    """Return the one scale and zero point of ``node``, None: it has several, or no bytes."""
    scale, zeros = (network.constants.get(name) for name in (*node.inputs, "")[1:3])
    if scale is None or zeros is None or scale.size > 1 or zeros.dtype.name not in FLIPS:
        return None
    return scaled(scale, zeros)
