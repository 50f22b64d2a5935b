"""Inputs and outputs as bytes: what a quantised network does first and last is left to the caller.

Then an image takes a quarter of the memory, and whoever has bytes already need not make floats of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from models.network.node import Node
from models.packs.records.ports import Port
from pipeline.export_c.errors import ExportError
from pipeline.export_c.network.network import Network, Quantisation

_QUANTIZE = ("QuantizeLinear", "com.microsoft.QuantizeLinear")
_DEQUANTIZE = ("DequantizeLinear", "com.microsoft.DequantizeLinear")
#: Operators that only move elements of their first input.
_MOVES = frozenset(
    ("Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")
)
_KINDS = ("uint8", "int8")


def with_byte_ports(network: Network) -> Network:
    """Return ``network`` with ports that are bytes where it quantises them first, or back last.

    Raises:
        ExportError: it does so with none.
    """
    found = dict(_inputs(network)) | dict(_outputs(network))
    if not found:
        raise ExportError(
            f"{network.name}: no input is quantised first and no output back last, so none can be bytes"
        )
    gone = {name for names, _ in found.values() for name in names}
    nodes = tuple(
        replace(node, operator="Identity", inputs=node.inputs[:1], attributes={})
        if node.output in gone
        else node
        for node in network.nodes
    )
    quantised = {port: quantisation for port, (_, quantisation) in found.items()}
    return replace(
        network,
        inputs=_as_bytes(network.inputs, quantised),
        outputs=_as_bytes(network.outputs, quantised),
        nodes=nodes,
        quantised=quantised,
    )


def _as_bytes(ports: Iterable[Port], found: Mapping[str, Quantisation]) -> tuple[Port, ...]:
    return tuple(
        Port(name=port.name, dtype=found[port.name].dtype, shape=port.shape, value=port.value)
        if port.name in found
        else port
        for port in ports
    )


#: A port, the values that its quantisation makes, and this.
_Found = tuple[str, tuple[set[str], Quantisation]]


def _inputs(network: Network) -> Iterator[_Found]:
    for port in network.inputs:
        made: dict[str, Quantisation] = {}
        if not _quantised(port.name, network, made):
            continue
        first, *others = set(made.values())
        if not others:
            yield port.name, (set(made), first)


def _quantised(name: str, network: Network, made: dict[str, Quantisation]) -> bool:
    """Return whether all that reads ``name`` quantises it; note in ``made`` what it makes, and how."""
    readers = [node for node in network.nodes if name in node.inputs]
    if any(port.name == name for port in network.outputs):
        return False
    for node in readers:
        if node.operator in _QUANTIZE and node.inputs[0] == name:
            how = _quantisation(node, network.constants)
            if how is None:
                return False
            made[node.output] = how
        elif node.operator not in _MOVES or not all(
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
        if maker is None or readers[name] != 1 or maker.operator not in _DEQUANTIZE:
            continue
        how = _quantisation(maker, network.constants)
        if how is not None and maker.inputs[0] not in network.constants:
            yield port.name, ({name}, how)


def _only_moves(node: Node | None) -> bool:
    """Return whether ``node`` makes its one output of elements of its first input."""
    return node is not None and node.operator in _MOVES and len(node.outputs) == 1


def _quantisation(node: Node, constants: Mapping[str, NDArray[Any]]) -> Quantisation | None:
    """Return the one scale and zero point of ``node``, None: it has several, or no bytes."""
    scale, zero = (constants.get(name) for name in node.inputs[1:3])
    if scale is None or zero is None or {scale.size, zero.size} != {1}:
        return None
    if zero.dtype.name not in _KINDS:
        return None
    return Quantisation(zero.dtype.name, float(scale.reshape(-1)[0]), int(zero.reshape(-1)[0]))
