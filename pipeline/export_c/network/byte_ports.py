"""Inputs and outputs as bytes: what a quantised network does first and last is left to the caller.

Then an image takes a quarter of the memory, and whoever has bytes already need not make floats of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from models.network.node import Node
from models.network.operators.movement import RESHAPES
from models.packs.records.ports import Port
from pipeline.export_c.errors import ExportError
from pipeline.export_c.network.network import Network
from pipeline.export_c.network.scales import FLIPS, Scaled, scaled

_QUANTIZE = ("QuantizeLinear", "com.microsoft.QuantizeLinear")
_DEQUANTIZE = ("DequantizeLinear", "com.microsoft.DequantizeLinear")
#: Operators that only move elements of their first input.
_MOVES = frozenset((*RESHAPES, "Slice", "Split", "Transpose"))


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
    quantised = {port: how for port, (_, how) in found.items()}
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
        made: dict[str, Scaled] = {}
        if _quantised(port.name, network, made):
            first = next(iter(made.values()))
            if len({(how.dtype, how.one, how.zero) for how in made.values()}) == 1:
                yield port.name, (set(made), first)


def _quantised(name: str, network: Network, made: dict[str, Scaled]) -> bool:
    """Return whether all that reads ``name`` quantises it; note in ``made`` what it makes, and how."""
    readers = [node for node in network.nodes if name in node.inputs]
    if any(port.name == name for port in network.outputs):
        return False
    for node in readers:
        if node.operator in _QUANTIZE and node.inputs[0] == name:
            how = _scaled(node, network)
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
        how = _scaled(maker, network)
        if how is not None and maker.inputs[0] not in network.constants:
            yield port.name, ({name}, how)


def _only_moves(node: Node | None) -> bool:
    """Return whether ``node`` makes its one output of elements of its first input."""
    return node is not None and node.operator in _MOVES and len(node.outputs) == 1


def _scaled(node: Node, network: Network) -> Scaled | None:
    """Return the one scale and zero point of ``node``, None: it has several, or no bytes."""
    scale, zeros = (network.constants.get(name) for name in (*node.inputs, "")[1:3])
    if scale is None or zeros is None or scale.size > 1 or zeros.dtype.name not in FLIPS:
        return None
    return scaled(scale, zeros)
