"""What operators say of a network: how many numbers are trained, how closely two runs compare."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.graphs.graph import Graph, all_graphs, inputs_of, is_quantised, quantised_weights
from models.graphs.ranges import range_of
from models.graphs.reader import element_of, graph_at
from models.network.catalogue import traits_of
from models.network.names import Op
from models.network.node import Node

# The weights of a network: how many numbers are trained, and which are no numbers.

_FLOATS = {"float16", "float32", "float64"}
# So many numbers of weights are held at a time.
_BLOCK = 1 << 20
# What a cast that is continuous makes, in ONNX's words; "": what is no cast.
_CONTINUOUS = {"", "bfloat16", "double", "float", "float16"}


def count_parameters(graph: Graph) -> int:
    """Count trainable numbers: floating-point and quantised weights, not statistics, scales and the like.

    Scalars are constants of formulas; those of bodies count as those of the main graph do.
    """
    graphs = list(all_graphs(graph))
    nodes = [node for subgraph in graphs for node in subgraph.nodes]
    untrained = {
        name
        for node in nodes
        for name in inputs_of(node, "statistic", "scale", "shape", "parameter")
    }
    quantised = {name: node for node in nodes for name in quantised_weights(node)}
    total = 0
    for name, array in (item for subgraph in graphs for item in subgraph.constants.items()):
        if not array.shape or name in untrained:
            continue
        if array.dtype.name in {*_FLOATS, "bfloat16"}:
            total += array.size
        elif name in quantised:
            total += _quantised_count(quantised[name], array)
    return total


def _quantised_count(node: Node, array: NDArray[Any]) -> int:
    """Return how many weights ``array`` has; a byte of ``MatMulNBits`` has several."""
    if node.operator == Op.MatMulNBits:
        rows, columns = (node.attributes.get(name) for name in ("K", "N"))
        if isinstance(rows, int) and isinstance(columns, int):  # nothing has checked it yet
            return rows * columns
    return array.size


def infinite_weights(graph: Graph) -> list[str]:
    """Return which weights of layers of ``graph`` have NaN or infinities, in words.

    Whatever is computed from them is no number either.
    """
    # Elsewhere infinities have a meaning, as in masks. It is not checked yet that a layer has weights.
    layers = (node for node in graph.nodes if traits_of(node.operator).layer)
    weights = {name for node in layers for name in inputs_of(node, "weight")}
    arrays = {name: array for name, array in graph.constants.items() if name in weights}
    return [
        f"weights {name!r}: {wrong} of {arrays[name].size} are NaN or infinite"
        for name, wrong in infinite_arrays(arrays)
    ]


def infinite_arrays(arrays: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, int]]:
    """Yield the names of floats among ``arrays`` that have NaN or infinities, and how many."""
    for name, array in arrays.items():
        if array.dtype.name in _FLOATS:
            wrong = sum(int((~np.isfinite(block)).sum()) for block in _blocks(array))
            if wrong:
                yield name, wrong


def _blocks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the numbers of ``array``, some at a time; read, since a page of a map stays in memory."""
    location = range_of(array)
    for first in range(0, array.size, _BLOCK):
        if location is None:
            yield array.reshape(-1)[first : first + _BLOCK]
        else:
            count = min(_BLOCK, array.size - first)
            offset = location.offset + first * array.itemsize
            yield np.fromfile(location.path, array.dtype, count, offset=offset)


# What operators say about answers: whether two runs can be compared, and how closely.


@dataclass(frozen=True)
class Traits:
    """``random``: a node that draws numbers, else empty. ``jumps``: an operator is not continuous.

    ``half``: computes with 16-bit floats. ``quantised``: computes with small integers. ``compared``: inputs
    that are tested for being equal to a number, and that number; so a branch may be chosen.
    """

    random: str = ""
    jumps: bool = False
    half: bool = False
    quantised: bool = False
    compared: tuple[tuple[str, float], ...] = ()


def read_traits(path: Path) -> Traits:
    """Return the traits of the ONNX file ``path``, which this program wrote; its weights are not read."""
    graph = graph_at(path)
    graphs = list(all_graphs(graph))
    nodes = [node for subgraph in graphs for node in subgraph.nodes]
    random = (f"{node.label!r} ({node.op_type})" for node in nodes if _draws(node))
    types = {array.dtype.name for subgraph in graphs for array in subgraph.constants.values()}
    types.update(map(_cast, nodes))
    types.update(_type_of(graph, name) for name in graph.inputs)
    return Traits(
        next(random, ""),
        any(map(_jumps, nodes)),
        any("float16" in kind for kind in types),
        any(map(is_quantised, nodes)),
        tuple(dict.fromkeys(_compared(graphs))),
    )


def _compared(graphs: Sequence[Graph]) -> Iterator[tuple[str, float]]:
    """Yield the inputs of the first of ``graphs`` and the single numbers to which they are compared."""
    nodes = [node for graph in graphs for node in graph.nodes]
    inputs = {name: name for name in graphs[0].inputs}
    for node in nodes:
        if traits_of(node.operator).passes_weights and node.inputs[0] in inputs:
            inputs[node.output] = inputs[node.inputs[0]]
    constants = {name: array for graph in graphs for name, array in graph.constants.items()}
    for node in nodes:
        if node.operator != Op.Equal:
            continue
        for name, other in (node.inputs, node.inputs[::-1]):
            array = constants.get(other)
            if (
                name in inputs
                and array is not None
                and array.size == 1
                and array.dtype.kind in "iuf"
            ):
                yield inputs[name], array.item()


def _type_of(graph: Graph, name: str) -> str:
    """Return the element type of a value, as arrays have it, or its type in ONNX's words."""
    if name in graph.values:
        return graph.values[name].dtype
    return graph.dynamic[name].type_name if name in graph.dynamic else ""


def _draws(node: Node) -> bool:
    trains = node.operator == Op.Dropout and any(node.inputs[2:])
    return traits_of(node.operator).draws or trains


def _cast(node: Node) -> str:
    """Return what ``node`` casts to, in ONNX's word; "": it does not."""
    return element_of(node.attributes["to"]) if node.operator == Op.Cast else ""


def _jumps(node: Node) -> bool:
    kind = _cast(node)
    return traits_of(node.operator).jumps or is_quantised(node) or kind not in _CONTINUOUS
