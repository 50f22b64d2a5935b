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
from models.network.operators.on_bytes import SCALES
from models.network.operators.reading import LAYERS

# The weights of a network: how many numbers are trained, and which are no numbers.

# Inputs with floating-point constants that are not trained: statistics, regions and scales.
_UNTRAINED = {
    "BatchNormalization": (3, 4),
    "Resize": (1, 2),
    "Upsample": (1,),
    **SCALES,
    "QLinearMatMul": (1, 4, 6),
    "DynamicQuantizeMatMul": (2,),
    "MatMulIntegerToFloat": (2, 3),
    "MatMulNBits": (2,),
}
# Inputs with weights as integers.
_QUANTISED = {
    "DequantizeLinear": (0,),
    "QLinearConv": (3, 8),
    "QLinearMatMul": (0, 3),
    "QGemm": (3, 6),
    "ConvInteger": (1,),
    "MatMulInteger": (0, 1),
    "DynamicQuantizeMatMul": (1,),
    "MatMulIntegerToFloat": (1,),
    "MatMulNBits": (1,),
}
_FLOATING = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
# Weights are mapped: a few MiB at a time, so that none of them are held.
_BLOCK = 1 << 20


def quantised_weights(node: onnx.NodeProto) -> list[str]:
    """Return the inputs of ``node`` that are weights as integers, if they are constants."""
    positions = _QUANTISED.get(node.op_type, ())
    return [name for position, name in enumerate(node.input) if name and position in positions]


def count_parameters(model: onnx.ModelProto) -> int:
    """Count trainable numbers: floating-point and quantised weights, not statistics, scales and the like.

    Scalars are constants of formulas; those of bodies count as those of the main graph do. Weights need no
    data: skeletons are counted, too.
    """
    nodes = [node for graph in all_graphs(model.graph) for node in graph.node]
    untrained = {
        name
        for node in nodes
        for position, name in enumerate(node.input)
        if position in _UNTRAINED.get(node.op_type, ())
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
    for node in (node for graph in graphs for node in graph.node if node.op_type == "Constant"):
        named += [(node.output[0], item.t) for item in node.attribute if item.HasField("t")]
    return named


def _quantised_count(node: onnx.NodeProto, tensor: TensorProto) -> int:
    """Return how many weights ``tensor`` has; a byte of ``MatMulNBits`` has several."""
    if node.op_type != "MatMulNBits":
        return math.prod(tensor.dims)
    sizes = attributes(node)
    return int(sizes["K"] * sizes["N"])


def is_quantised(node: onnx.NodeProto) -> bool:
    """Return whether ``node`` computes with quantised numbers."""
    return node.op_type in _QUANTISED


def infinite_weights(model: onnx.ModelProto) -> list[str]:
    """Return which weights of layers of ``model``, from ``read_onnx``, have NaN or infinities, in words.

    Whatever is computed from them is no number either.
    """
    # Elsewhere infinities have a meaning, as in masks. It is not checked yet that a layer has weights.
    layers = (node for node in model.graph.node if node.op_type in LAYERS)
    weights = {name for node in layers for name in node.input[1:2]}
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

_LIKE = ("RandomNormalLike", "RandomUniformLike")
_RANDOM = frozenset(("Bernoulli", "Multinomial", "RandomNormal", "RandomUniform", *_LIKE))
# A difference in the last digit of what these read can change what they give by anything.
_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not")
_THRESHOLDS = ("Mod", "Shrink", "ThresholdedRelu")
#: What they make are integers.
ROUNDING = frozenset(("Ceil", "Floor", "Round", "Sign"))
_SELECTION = ("ArgMax", "ArgMin", "Compress", "Hardmax", "NonMaxSuppression", "NonZero", "TopK")
_JUMPING = frozenset(
    (
        *_COMPARISONS,
        *_THRESHOLDS,
        *ROUNDING,
        *_SELECTION,
        "DynamicQuantizeLinear",
        "QuantizeLinear",
        "Unique",
    )
)
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
    trains = node.op_type == "Dropout" and any(node.input[2:])
    return node.op_type in _RANDOM or trains


def _cast(node: onnx.NodeProto) -> int | None:
    return int(attributes(node)["to"]) if node.op_type == "Cast" else None


def _jumps(node: onnx.NodeProto) -> bool:
    number = _cast(node)
    return node.op_type in _JUMPING or is_quantised(node) or number not in (None, *_FLOATING)
