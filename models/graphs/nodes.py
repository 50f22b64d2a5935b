"""What nodes of an ONNX graph have: attributes, names read and made, graphs, tensors, an order."""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from models.network.names import Op, domain_of, op_of
from models.network.node import Node


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of ``node`` as Python values (strings decoded)."""
    values = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    return {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for name, value in values.items()
    }


def set_attributes(node: onnx.NodeProto, **values: int | list[int] | None) -> None:
    """Let ``node`` have attributes of these values, behind its others; None: not have them."""
    kept = [item for item in node.attribute if item.name not in values]
    given = {name: value for name, value in values.items() if value is not None}
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.extend(helper.make_attribute(name, value) for name, value in given.items())


def with_attributes(node: onnx.NodeProto, **values: int | list[int] | None) -> onnx.NodeProto:
    """Return a copy of ``node`` with attributes of these values; None: without them."""
    copy = copied(node)
    set_attributes(copy, **values)
    return copy


def copied(
    node: onnx.NodeProto,
    inputs: Iterable[str] | None = None,
    outputs: Iterable[str] | None = None,
    name: str | None = None,
) -> onnx.NodeProto:
    """Return ``node`` again; what is given is not as it was."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    if inputs is not None:
        copy.input[:] = inputs
    if outputs is not None:
        copy.output[:] = outputs
    if name is not None:
        copy.name = name
    return copy


def versions_of(opsets: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Return the versions of domains, ONNX's own is ""."""
    return {domain_of(item.domain): item.version for item in opsets}


def node_of(node: onnx.NodeProto, opsets: Mapping[str, int]) -> Node:
    """Return ``node`` as a plain record; ``opsets``: the versions of domains, ONNX's own is ""."""
    domain = domain_of(node.domain)
    count = max((index + 1 for index, name in enumerate(node.output) if name), default=0)
    return Node(
        op_of(node),
        tuple(node.input),
        tuple(node.output[:count]),
        attributes(node),
        opsets.get(domain, 1),
        label(node) if count else node.name,
    )


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


def label(node: onnx.NodeProto) -> str:
    """Return what to call ``node`` in messages and tables."""
    return node.name or made(node)[0]


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


def live(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes that an output depends on, in their order: ONNX Runtime keeps others, too."""
    wanted = {value.name for value in model.graph.output}
    kept = []
    for node in reversed(model.graph.node):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(reads(node))
    return kept[::-1]


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
        for item in node.attribute:
            if item.HasField("t"):
                yield item.t
            yield from item.tensors
            held = [item.sparse_tensor] if item.HasField("sparse_tensor") else []
            yield from sparse_parts((*held, *item.sparse_tensors))
        for graph in subgraphs(node):
            yield from graph.initializer
            yield from sparse_parts(graph.sparse_initializer)
            yield from inner_tensors(graph.node)


def sparse_parts(tensors: Iterable[onnx.SparseTensorProto]) -> Iterator[TensorProto]:
    """Yield values and indices of sparse tensors."""
    for tensor in tensors:
        yield from (tensor.values, tensor.indices)


def stable_order(needs: Mapping[int, set[int]]) -> list[int]:
    """Return the keys of ``needs`` so that each follows those that it needs, otherwise ascending.

    What lies on a circle, or behind one, is left out.
    """
    users: dict[int, list[int]] = {key: [] for key in needs}
    for key, needed in needs.items():
        for other in needed:
            users[other].append(key)
    missing = {key: len(needed) for key, needed in needs.items()}
    ready = [key for key, count in missing.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        key = heapq.heappop(ready)
        order.append(key)
        for user in users[key]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, user)
    return order


def fresh(name: str, used: set[str]) -> str:
    """Return ``name``, or a longer one where that is ``used``; it is among them then."""
    while name in used:
        name += "_"
    used.add(name)
    return name
