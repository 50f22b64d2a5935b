"""What nodes of an ONNX graph have: attributes, names read and made, graphs, tensors, an order."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from models.network.names import Op, domain_of


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of ``node`` as Python values (strings decoded)."""
    values = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    return {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for name, value in values.items()
    }


def versions_of(opsets: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Return the versions of domains, ONNX's own is ""."""
    return {domain_of(item.domain): item.version for item in opsets}


def new_node(
    operator: Op,
    inputs: Sequence[str],
    outputs: Sequence[str],
    name: str = "",
    **attributes: Any,
) -> onnx.NodeProto:
    """Return a node of ``operator``; ``name``: what it is called, if anything."""
    domain = operator.domain or None  # an empty one would be written
    return helper.make_node(operator.op_type, inputs, outputs, name, domain=domain, **attributes)


def name_nodes(model: onnx.ModelProto) -> bool:
    """Let no node of ``model`` lack a name or share one; return whether one of them did.

    A name is what the node makes, or longer. ONNX Runtime derives names of what it inserts from those of
    nodes: derived from none, they are those of an earlier file, and it refuses its own.
    """
    used: set[str] = set()
    others = []
    for graph in all_graphs(model.graph):
        for node in graph.node:
            if node.name and node.name not in used:
                used.add(node.name)
            else:
                others.append(node)
    counts: Counter[str] = Counter()
    for node in others:
        name = unique = node.name or next(iter(made(node)), node.op_type)
        while unique in used:
            counts[name] += 1
            unique = f"{name}_{counts[name]}"
        used.add(unique)
        node.name = unique
    return bool(others)


def made(node: onnx.NodeProto) -> list[str]:
    """Return the outputs of ``node`` that it computes."""
    return [name for name in node.output if name]


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that are attributes of ``node``."""
    for item in node.attribute:
        if item.HasField("g"):
            yield item.g
        yield from item.graphs


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield ``graph`` and those inside its nodes."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from all_graphs(inner)


def reads(node: onnx.NodeProto) -> list[str]:
    """Return what ``node`` reads: its inputs, and what its subgraphs take from outside themselves."""
    captured = (name for graph in subgraphs(node) for name in _captured(graph))
    return [name for name in (*node.input, *captured) if name]


def replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Let ``graph`` have ``nodes``, which may be its own, and no others."""
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def _captured(graph: onnx.GraphProto) -> Iterator[str]:
    local = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        yield from (name for name in reads(node) if name not in local)
        local.update(node.output)
    yield from (value.name for value in graph.output if value.name not in local)


def inner_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[TensorProto]:
    """Yield the tensors in attributes of ``nodes`` and in the graphs that they run."""
    for node in nodes:
        yield from attribute_tensors(node.attribute)


def attribute_tensors(attributes: Iterable[onnx.AttributeProto]) -> Iterator[TensorProto]:
    """Yield the tensors in ``attributes`` and in the graphs that are some of them."""
    for item in attributes:
        if item.HasField("t"):
            yield item.t
        yield from item.tensors
        held = [item.sparse_tensor] if item.HasField("sparse_tensor") else []
        yield from sparse_parts((*held, *item.sparse_tensors))
        for graph in (*([item.g] if item.HasField("g") else []), *item.graphs):
            yield from graph.initializer
            yield from sparse_parts(graph.sparse_initializer)
            yield from inner_tensors(graph.node)


def sparse_parts(tensors: Iterable[onnx.SparseTensorProto]) -> Iterator[TensorProto]:
    """Yield values and indices of sparse tensors."""
    for tensor in tensors:
        yield from (tensor.values, tensor.indices)
