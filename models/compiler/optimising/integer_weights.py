"""Weights that are integers in the source and that kernels read as floats.

Where weights alone are quantised, or activations have 16 bits or none, DequantizeLinear stands between a
weight and its operator, and no kernel of integers takes both. ONNX Runtime runs it in every sweep, into
memory as large as the layer, and the operator behind it has no blocked kernel, as its weights are no
constants. Here these weights become floats before the network is optimised for its target; how they lie in
the file is another question (models/compiler/writing/storing.py).

ONNX Runtime decides which: those that are left when it has made integers of all that it can. Weights
of 4 bits become weights of 8 bits before that: for the same numbers it has more kernels.
"""

from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.graphs.graph import Edits, Graph
from models.graphs.writer import model_of
from models.network.catalogue import traits_of
from models.network.names import Op
from models.network.node import Node
from models.runtime.sessions import open_session, session_options

# Four bits, and what has eight.
_WIDER = {"int4": np.int8, "uint4": np.uint8}
_WHOLE = ("int8", "uint8", *_WIDER)
_LEAST, _MOST = -128, 127
#: What in ONNX Runtime takes such floats, between quantised activations, for weights to be quantised.
QUANTISES_WEIGHTS = "WeightBiasQuantization"


def has_integers(graph: Graph) -> bool:
    """Return whether DequantizeLinear reads constants of ``graph``."""
    return any(_of_constants(node, graph.constants) for node in graph.nodes)


def widened(graph: Graph, folder: Path) -> Graph:
    """Return ``graph`` with 8 bits in constants of 4 that DequantizeLinear reads, without scales of blocks.

    ``folder``: where large ones are to lie.
    """
    whole, blocked = set[str](), set[str]()
    for node in graph.nodes:
        if _dequantises(node):
            names = blocked if node.attributes.get("block_size", 0) else whole
            names.update((node.inputs[0], *node.inputs[2:]))
    edits = Edits(graph, folder)
    wider = {
        name: edits.stored(array.astype(_WIDER[array.dtype.name]))
        for name, array in graph.constants.items()
        if array.dtype.name in _WIDER and name in whole - blocked
    }
    return replace(graph, constants={**graph.constants, **wider})


def make_floats(graph: Graph, folder: Path) -> Graph:
    """Compute what DequantizeLinear makes of constants of ``graph``; in ``folder`` large ones are to lie.

    ``dequantised`` of the result has these constants, but 32-bit ones (biases), each with why 8-bit
    integers and a scale for each channel cannot say the same; "": they can.

    Raises:
        SessionError: ONNX Runtime refuses one.
    """
    edits, reasons = Edits(graph, folder), dict[str, str]()
    kept, floats = [], dict[str, NDArray[Any]]()
    for node in graph.nodes:
        if not _of_constants(node, graph.constants):
            kept.append(node)
            continue
        operands = [graph.constants[name] for name in node.inputs if name]
        floats[node.output] = edits.stored(_dequantised(graph, node))
        if operands[0].dtype != np.int32:
            reasons[node.inputs[0]] = _why_not_whole(node, *operands)
    return replace(
        graph, nodes=tuple(kept), constants={**graph.constants, **floats}, dequantised=reasons
    )


def _dequantises(node: Node) -> bool:
    return traits_of(node.operator).of is Op.DequantizeLinear


def _of_constants(node: Node, constants: Container[str]) -> bool:
    return _dequantises(node) and all(name in constants for name in node.inputs if name)


def _dequantised(graph: Graph, node: Node) -> NDArray[Any]:
    """Let ONNX Runtime compute ``node``: whatever types and blocks it has, it has those bits."""
    operands = {name: np.array(graph.constants[name]) for name in node.inputs if name}
    alone = Graph(
        nodes=(node,),
        values={},
        constants=operands,
        inputs=(),
        outputs=(node.output,),
        opsets=graph.opsets,
        ir_version=graph.ir_version,
    )
    session = open_session(model_of(alone).SerializeToString(), session_options(optimise=False))
    (numbers,) = session.run(None, {})
    return np.asarray(numbers)


def _why_not_whole(
    node: Node, weight: NDArray[Any], scale: NDArray[Any], *zero_point: NDArray[Any]
) -> str:
    """Return why int8 times a scale for each output channel is not what ``node`` makes."""
    if weight.dtype.name not in _WHOLE:
        return f"they are {_in_words(weight.dtype)}"
    if node.attributes.get("block_size", 0) or scale.ndim > 1:
        return "they have a scale for each block"
    if scale.dtype != np.float32:
        return f"their scales are {_in_words(scale.dtype)}"
    whole = weight.astype(np.int32)
    if zero_point and zero_point[0].size > 0:
        whole = whole - _along(zero_point[0], node, whole.ndim)
    least, most = int(whole.min(initial=0)), int(whole.max(initial=0))
    if least < _LEAST or most > _MOST:
        return f"less their zero point they go from {least} to {most}"
    return ""


def _along(vector: NDArray[Any], node: Node, rank: int) -> NDArray[Any]:
    """Return ``vector``, one number or one for each index of the node's axis, to be subtracted."""
    vector = vector.astype(np.int32)
    if vector.size == 1:
        return vector.reshape(())
    axis = node.attributes.get("axis", 1) % rank
    return vector.reshape([-1 if place == axis else 1 for place in range(rank)])


def _in_words(dtype: np.dtype[Any]) -> str:
    """Return what ONNX calls ``dtype``: "float8e4m3fn"."""
    return dtype.name.replace("_", "")
