"""What operators say of a network: how many numbers are trained, how closely two runs compare."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from models.graphs.file import numbers_of
from models.graphs.nodes import all_graphs, attributes, label
from models.network.catalogue import traits_of
from models.network.names import Op, op_of
from models.network.records import Role

# The weights of a network: how many numbers are trained, and which are no numbers.

_FLOATING = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
# Weights are mapped: a few MiB at a time, so that none of them are held.
_BLOCK = 1 << 20


def quantised_weights(node: onnx.NodeProto) -> list[str]:
    """Return the inputs of ``node`` that are weights as integers, if they are constants."""
    return inputs_of(node, "data", "weight", "bias") if is_quantised(node) else []


def inputs_of(node: onnx.NodeProto, *roles: Role) -> list[str]:
    """Return the inputs of ``node`` that have one of ``roles``."""
    positions = traits_of(op_of(node)).positions(len(node.input), *roles)
    return [node.input[position] for position in positions if node.input[position]]


def count_parameters(model: onnx.ModelProto) -> int:
    """Count trainable numbers: floating-point and quantised weights, not statistics, scales and the like.

    Scalars are constants of formulas; those of bodies count as those of the main graph do. Weights need no
    data: skeletons are counted, too.
    """
    nodes = [node for graph in all_graphs(model.graph) for node in graph.node]
    untrained = {
        name
        for node in nodes
        for name in inputs_of(node, "statistic", "scale", "shape", "parameter")
    }
    quantised = {name: node for node in nodes for name in quantised_weights(node)}
    total = 0
    for name, tensor in _tensors(model):
        if not tensor.dims or name in untrained:
            continue
        if tensor.data_type in _FLOATING:
            total += math.prod(tensor.dims)
        elif name in quantised:
            total += _quantised_count(quantised[name], tensor)
    return total


def _tensors(model: onnx.ModelProto) -> list[tuple[str, TensorProto]]:
    """Return initializers and the tensors of Constant nodes of all graphs, each with its name."""
    graphs = list(all_graphs(model.graph))
    named = [(tensor.name, tensor) for graph in graphs for tensor in graph.initializer]
    for node in (node for graph in graphs for node in graph.node if op_of(node) == Op.Constant):
        named += [(node.output[0], item.t) for item in node.attribute if item.HasField("t")]
    return named


def _quantised_count(node: onnx.NodeProto, tensor: TensorProto) -> int:
    """Return how many weights ``tensor`` has; a byte of ``MatMulNBits`` has several."""
    if op_of(node) != Op.MatMulNBits:
        return math.prod(tensor.dims)
    sizes = attributes(node)
    return int(sizes["K"] * sizes["N"])


def is_quantised(node: onnx.NodeProto) -> bool:
    """Return whether ``node`` computes with quantised numbers."""
    return traits_of(op_of(node)).elements == "quantised"


def infinite_weights(model: onnx.ModelProto) -> list[str]:
    """Return which weights of layers of ``model``, from ``read_onnx``, have NaN or infinities, in words.

    Whatever is computed from them is no number either.
    """
    # Elsewhere infinities have a meaning, as in masks. It is not checked yet that a layer has weights.
    layers = (node for node in model.graph.node if traits_of(op_of(node)).layer)
    weights = {name for node in layers for name in inputs_of(node, "weight")}
    held = (tensor for tensor in model.graph.initializer if tensor.name in weights)
    return [
        f"weights {tensor.name!r}: {wrong} of {math.prod(tensor.dims)} are NaN or infinite"
        for tensor, wrong in infinite_tensors(held)
    ]


def infinite_tensors(
    tensors: Iterable[TensorProto], folder: Path = Path()
) -> Iterator[tuple[TensorProto, int]]:
    """Yield floats that have NaN or infinities, and how many; ``folder``: where their files lie."""
    for tensor in tensors:
        if tensor.data_type in _FLOATS:
            numbers = numbers_of(tensor, folder).reshape(-1)
            blocks = (numbers[first : first + _BLOCK] for first in range(0, len(numbers), _BLOCK))
            wrong = sum(int((~np.isfinite(block)).sum()) for block in blocks)
            if wrong:
                yield tensor, wrong


# What operators say about answers: whether two runs can be compared, and how closely.

_HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


@dataclass(frozen=True)
class Traits:
    """``random``: a node that draws numbers, else empty. ``jumps``: an operator is not continuous.

    ``half``: computes with 16-bit floats. ``quantised``: computes with small integers.
    """

    random: str = ""
    jumps: bool = False
    half: bool = False
    quantised: bool = False


def read_traits(path: Path) -> Traits:
    """Return the traits of the ONNX file ``path``; its weights are not read."""
    model = onnx.load(path, load_external_data=False)
    nodes = [node for graph in all_graphs(model.graph) for node in graph.node]
    nodes += [node for function in model.functions for node in function.node]
    random = (f"{label(node)!r} ({node.op_type})" for node in nodes if _draws(node))
    types = {tensor.data_type for graph in all_graphs(model.graph) for tensor in graph.initializer}
    types.update(value.type.tensor_type.elem_type for value in model.graph.input)
    types.update(number for node in nodes if (number := _cast(node)))
    return Traits(
        next(random, ""),
        any(_jumps(node) for node in nodes),
        not types.isdisjoint(_HALF),
        any(is_quantised(node) for node in nodes),
    )


def _draws(node: onnx.NodeProto) -> bool:
    trains = op_of(node) == Op.Dropout and any(node.input[2:])
    return traits_of(op_of(node)).draws or trains


def _cast(node: onnx.NodeProto) -> int | None:
    return int(attributes(node)["to"]) if op_of(node) == Op.Cast else None


def _jumps(node: onnx.NodeProto) -> bool:
    number = _cast(node)
    return traits_of(op_of(node)).jumps or is_quantised(node) or number not in (None, *_FLOATING)
