"""All families of operators: what a node computes, as a record for each kind.

A record says all that there is to know of a node: its values with their shapes, its windows, its
parameters. ``models.network.catalogue.read_operator`` reads it.
"""

from typing import Any, TypeAlias

from models.network.node import NamedTensor
from models.network.operators.convolution import Convolution, TransposedConvolution
from models.network.operators.elements import Combine, Map
from models.network.operators.matrix import MatrixProduct
from models.network.operators.movement import Gather, Movement, Pad, Reshape
from models.network.operators.normalisation import BatchNorm, GroupNorm, ResponseNorm, Softmax
from models.network.operators.on_bytes import Conversion, LookUp, OnBytes
from models.network.operators.pooling import Pooling, Reduction
from models.network.operators.resizing import Resize

__all__ = [
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
    "results",
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


def results(operator: Operator) -> tuple[NamedTensor, ...]:
    """Return what ``operator`` makes: the rule of shapes and types of all that is read of nodes."""
    return operator.ys if isinstance(operator, Movement) else (operator.y,)
