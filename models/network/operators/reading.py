"""All families of operators: a record for each kind, and what reads it from an ONNX node.

A record says all that there is to know of an operator: its values with their shapes, its windows, its
parameters. Attributes, defaults and versions of operator sets are read here and nowhere else.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from models.network.node import KnownTensors, Node, NodeReader, UnsuitedError
from models.network.operators import (
    convolution,
    elements,
    matrix,
    movement,
    normalisation,
    on_bytes,
    pooling,
    resizing,
)
from models.network.operators.convolution import Convolution, TransposedConvolution
from models.network.operators.elements import Combine, Map
from models.network.operators.matrix import MatrixProduct
from models.network.operators.movement import Gather, Movement, Pad, Reshape
from models.network.operators.normalisation import BatchNorm, GroupNorm, ResponseNorm, Softmax
from models.network.operators.on_bytes import Conversion, LookUp, OnBytes
from models.network.operators.pooling import Pooling, Reduction
from models.network.operators.resizing import Resize

__all__ = [
    "LAYERS",
    "READERS",
    "BatchNorm",
    "Combine",
    "Conversion",
    "Convolution",
    "Gather",
    "GroupNorm",
    "LookUp",
    "Map",
    "MatrixProduct",
    "Movement",
    "OnBytes",
    "Operator",
    "Pad",
    "Pooling",
    "Reduction",
    "Reshape",
    "Resize",
    "ResponseNorm",
    "Softmax",
    "TransposedConvolution",
    "read_operator",
]

Operator: TypeAlias = (
    BatchNorm
    | Combine
    | Conversion
    | Convolution
    | Gather
    | GroupNorm
    | LookUp
    | Map
    | Movement
    | OnBytes[Any]
    | Pad
    | Pooling
    | MatrixProduct
    | Reduction
    | Reshape
    | Resize
    | ResponseNorm
    | Softmax
    | TransposedConvolution
)

#: Those of ONNX's own whose second input is the weights of a layer.
LAYERS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))

#: By operator; one of another domain than ONNX's own has that in front.
READERS: Mapping[str, Callable[[NodeReader], Operator]] = {
    **convolution.READERS,
    **elements.READERS,
    **matrix.READERS,
    **movement.READERS,
    **normalisation.READERS,
    **pooling.READERS,
    **resizing.READERS,
    **on_bytes.READERS,
}


def read_operator(node: Node, known: KnownTensors) -> Operator:
    """Return what ``node`` computes; ``known``: of its inputs.

    Raises:
        UnsuitedError: no family has such an operator, or it says something that is not known here.
    """
    reader = READERS.get(node.operator)
    if reader is None:
        raise UnsuitedError("no such operator is known")
    return reader(NodeReader(node, known))
