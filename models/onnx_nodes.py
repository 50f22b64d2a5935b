"""What a node of an ONNX graph has: attributes, names that it reads and makes, graphs inside it."""

from collections.abc import Iterator
from typing import Any

import onnx
from onnx import helper


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of ``node`` as Python values (strings decoded)."""
    values = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    return {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for name, value in values.items()
    }


def label(node: onnx.NodeProto) -> str:
    """Return what to call ``node`` in messages and tables."""
    return node.name or made(node)[0]


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


def _captured(graph: onnx.GraphProto) -> Iterator[str]:
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        yield from (name for name in reads(node) if name not in own)
        own.update(node.output)
    yield from (value.name for value in graph.output if value.name not in own)
