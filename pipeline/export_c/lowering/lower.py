"""Which operators become C, and by which of our functions."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from models.network.activations import Kind
from models.network.fields import Array
from models.network.node import Node, NodeReader, UnsuitedError
from models.network.operators import (
    READERS,
    BatchNorm,
    Combine,
    Convolution,
    Gather,
    GroupNorm,
    Map,
    Move,
    Pad,
    Pool,
    Product,
    Reduction,
    Reshape,
    Resize,
    Softmax,
    TransposedConvolution,
    read_operator,
)
from models.network.patterns import Found, activations_in
from pipeline.export_c.errors import ExportError
from pipeline.export_c.lowering import (
    byte_elements,
    byte_pools,
    byte_products,
    convolution,
    elements,
    matrix,
    movement,
    normalisation,
    resizing,
)
from pipeline.export_c.lowering.builder import Builder
from pipeline.export_c.lowering.scales import FLIPS
from pipeline.export_c.lowering.steps import Program
from pipeline.export_c.network.network import Network

_DTYPES = ("float32", *FLIPS)
#: What adds the steps of an operator on floats, or one that moves elements of any type.
OPERATORS: Mapping[type, Callable[[Builder, Any], None]] = {
    BatchNorm: normalisation.batch_norm,
    Combine: elements.combine,
    Convolution: convolution.convolution,
    Gather: movement.gather,
    GroupNorm: normalisation.group_norm,
    Map: elements.apply,
    Move: movement.move,
    Pad: movement.pad,
    Pool: convolution.pool,
    Product: matrix.product,
    Reduction: normalisation.reduction,
    Reshape: movement.reshape,
    Resize: resizing.resize,
    Softmax: normalisation.softmax,
    TransposedConvolution: convolution.transposed_convolution,
}
#: The same of operators on bytes, by their names in ONNX.
OF_BYTES: Mapping[str, Callable[[Builder, NodeReader], None]] = {
    **byte_elements.OPERATORS,
    **byte_pools.OPERATORS,
    **byte_products.OPERATORS,
}
#: Activations that take fewer values as one function than as the nodes that they are written in.
_AS_ONE: frozenset[Kind] = frozenset(("silu",))


def lower(network: Network) -> Program:
    """Return the steps of ``network``.

    Raises:
        ExportError: a node, an input or an output cannot become C; the message names it and says why.
    """
    to = Builder(network.constants, [port.name for port in network.outputs])
    for port in (*network.inputs, *network.outputs):
        if port.is_loose or port.dtype not in _DTYPES:
            raise ExportError(
                f"{network.name}: {port.name!r} is {port.dtype} {list(port.shape)}; "
                "float32, int8 and uint8 of a known shape can be exported"
            )
    for port in network.inputs:
        to.values[port.name] = Array(dtype=port.dtype, shape=port.shape)
    _check_operators(network)
    found = _activations(network)
    inside = {at for each in found.values() for at in each.nodes[:-1]}
    for at, node in enumerate(network.nodes):
        if at not in inside:
            _add(to, network, node, found.get(at))
    _check_outputs(network, to)
    return Program(tuple(to.steps), to.values)


def _activations(network: Network) -> dict[int, Found]:
    """Return the activations of several nodes that are one step, by their last node."""
    number = Builder(network.constants).known.number
    kept = [port.name for port in network.outputs]
    return {
        each.nodes[-1]: each
        for each in activations_in(network.nodes, kept, number)
        if each.activation.kind in _AS_ONE
    }


def _add(to: Builder, network: Network, node: Node, found: Found | None) -> None:
    """Add the steps of ``node``, or of the activation that it ends."""
    to.label = node.label
    read = NodeReader(node if found is None else replace(node, inputs=(found.x,)), to.known)
    of_bytes = OF_BYTES.get(node.operator)
    try:
        if found is not None:
            x = read.floats(0)
            elements.apply(to, Map(function=found.activation, x=x, y=read.made(x)))
        elif of_bytes is not None and (
            node.operator not in READERS or read.value(0).dtype in FLIPS
        ):
            of_bytes(to, read)
        else:
            operator = read_operator(node, to.known)
            if type(operator) not in OPERATORS:
                raise UnsuitedError("it has no function in C")
            OPERATORS[type(operator)](to, operator)
    except UnsuitedError as exc:
        raise ExportError(f"{network.name}: node {node.label!r} ({node.operator}): {exc}") from exc


def _check_operators(network: Network) -> None:
    """Check that all operators are known, before any of them is looked at."""
    known = READERS.keys() | OF_BYTES.keys()
    others = [node for node in network.nodes if node.operator not in known]
    if not others:
        return
    first = {node.operator: node.label for node in reversed(others)}
    said = ", ".join(
        f"{name} ({count}, the first {first[name]!r})"
        for name, count in Counter(node.operator for node in others).items()
    )
    raise ExportError(f"{network.name}: these operators cannot be exported to C: {said}")


def _check_outputs(network: Network, to: Builder) -> None:
    given = {port.name for port in network.inputs}
    for port in network.outputs:
        if port.name in given:
            raise ExportError(f"{network.name}: output {port.name!r} is an input, unchanged")
        made = to.values.get(port.name)
        if made is None:
            raise ExportError(f"{network.name}: output {port.name!r} is constant")
        if made.shape != port.shape:
            raise ExportError(
                f"{network.name}: output {port.name!r} is {list(made.shape)}, "
                f"the pack says {list(port.shape)}"
            )
