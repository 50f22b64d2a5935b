"""What operators say about answers: whether two runs can be compared, and how closely."""

from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto

from models.graphs.nodes import all_graphs, attributes, label
from models.graphs.parameters import is_quantised

_LIKE = ("RandomNormalLike", "RandomUniformLike")
_RANDOM = frozenset(("Bernoulli", "Multinomial", "RandomNormal", "RandomUniform", *_LIKE))
# A difference in the last digit of what these read can change what they give by anything.
_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Sign")
_ROUNDING = ("Ceil", "Floor", "Mod", "Round", "Shrink", "ThresholdedRelu")
_SELECTION = ("ArgMax", "ArgMin", "Compress", "Hardmax", "NonMaxSuppression", "NonZero", "TopK")
_JUMPING = frozenset(
    (*_COMPARISONS, *_ROUNDING, *_SELECTION, "DynamicQuantizeLinear", "QuantizeLinear", "Unique")
)
_HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_FLOATING = (*_HALF, TensorProto.FLOAT, TensorProto.DOUBLE)


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
