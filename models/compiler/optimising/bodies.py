"""Bodies of If, Loop and Scan as a file can hold them: no name twice, weights outside.

ONNX Runtime names what it inserts in each graph for itself: before an If and inside there may be the same
name, which it then refuses to read. And it holds a weight inside a body several
times over while loading; the main graph's are loaded like all others.
"""

import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from models.compiler.analysis.graph import is_streamable
from models.graphs.nodes import all_graphs, made, new_node, subgraphs
from models.network.names import Op


def rename_inner(model: onnx.ModelProto) -> None:
    """Rename what bodies define under a name that exists outside of them."""
    names = _Names(model.graph)
    for node in model.graph.node:
        for body in subgraphs(node):
            _rename_defined(body, _defined(model.graph), names)


def move_out(model: onnx.ModelProto) -> None:
    """Move the weights of all bodies to the main graph, under names of their own."""
    names = _Names(model.graph)
    for node in model.graph.node:
        for body in subgraphs(node):
            _move_out(body, model.graph, names)


class _Names:
    """Gives names that no graph of a model has."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._taken = {name for each in all_graphs(graph) for name in _mentioned(each)}
        self._count = 0

    def like(self, name: str) -> str:
        new = name
        while new in self._taken:
            self._count += 1
            new = f"{name}/{self._count}"
        self._taken.add(new)
        return new


def _mentioned(graph: onnx.GraphProto) -> Iterator[str]:
    yield from _defined(graph)
    for node in graph.node:
        yield from node.input


def _defined(graph: onnx.GraphProto) -> set[str]:
    defined = {value.name for value in graph.input}
    defined.update(tensor.name for tensor in graph.initializer)
    defined.update(name for node in graph.node for name in made(node))
    return defined


def _rename_defined(body: onnx.GraphProto, outside: set[str], names: _Names) -> None:
    own = _defined(body)
    _rename(body, {name: names.like(name) for name in sorted(own & outside)})
    visible = outside | _defined(body)
    for node in body.node:
        for inner in subgraphs(node):
            _rename_defined(inner, visible, names)


def _rename(body: onnx.GraphProto, new: Mapping[str, str]) -> None:
    """Rename values of ``body`` wherever it and its own bodies use them."""
    if not new:
        return
    for value in (*body.input, *body.output, *body.value_info):
        value.name = new.get(value.name, value.name)
    for tensor in body.initializer:
        tensor.name = new.get(tensor.name, tensor.name)
    for node in body.node:
        node.output[:] = [new.get(name, name) for name in node.output]
    rename_reads(body.node, new)


def rename_reads(nodes: Iterable[onnx.NodeProto], new: Mapping[str, str]) -> None:
    """Let ``nodes``, and what is inside them, read values under ``new`` names."""
    for node in nodes:
        node.input[:] = [new.get(name, name) for name in node.input]
        for body in subgraphs(node):
            hidden = _defined(body)
            visible = {old: name for old, name in new.items() if old not in hidden}
            rename_reads(body.node, visible)
            for value in body.output:
                value.name = visible.get(value.name, value.name)


def _move_out(body: onnx.GraphProto, main: onnx.GraphProto, names: _Names) -> None:
    inputs = {value.name for value in body.input}
    moved: dict[str, str] = {}
    kept = []
    for tensor in body.initializer:
        copy = TensorProto()
        copy.CopyFrom(tensor)
        if tensor.name in inputs or not _is_weight(tensor):
            kept.append(copy)
            continue
        copy.name = moved[tensor.name] = names.like(tensor.name)
        main.initializer.append(copy)
        tensor.Clear()
    del body.initializer[:]
    body.initializer.extend(kept)
    rename_reads(body.node, moved)
    for value in body.output:
        if value.name in moved:  # a body cannot return what it does not make
            body.node.append(new_node(Op.Identity, [moved[value.name]], [value.name]))
    for node in body.node:
        for inner in subgraphs(node):
            _move_out(inner, main, names)


def _is_weight(tensor: TensorProto) -> bool:
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except (KeyError, ValueError):
        return False
    return tensor.data_type != TensorProto.STRING and is_streamable(
        dtype, math.prod(tensor.dims) * dtype.itemsize
    )
