"""ONNX operators in NumPy, for the reference device: one idea a file, each with a table OPERATORS.

Written from the operators' specifications. Clarity before speed; sums are made in float64.
"""

from collections.abc import Mapping

from tests.oracle import (
    activation,
    blocked,
    convolution,
    elementwise,
    matrix,
    normalise,
    pooling,
    reduction,
    resize,
    shape,
    slicing,
)
from tests.oracle.base import Operator

#: By domain, then by operator. The domain of standard operators is "".
OPERATORS: Mapping[str, Mapping[str, Operator]] = {
    "": (
        activation.OPERATORS
        | convolution.OPERATORS
        | elementwise.OPERATORS
        | matrix.OPERATORS
        | normalise.OPERATORS
        | pooling.OPERATORS
        | reduction.OPERATORS
        | resize.OPERATORS
        | shape.OPERATORS
        | slicing.OPERATORS
    ),
    "com.microsoft": (
        activation.MICROSOFT_OPERATORS | convolution.FUSED_OPERATORS | matrix.FUSED_OPERATORS
    ),
    "com.microsoft.nchwc": blocked.OPERATORS,
}

#: Operators that may have more than one output; of all others only the first output is computed.
SEVERAL_OUTPUTS = frozenset({"Split"})

#: Attribute values that are computed here, for attributes of which not all are.
VALUES: Mapping[str, frozenset[str]] = {
    "activation": frozenset(activation.ACTIVATIONS),
    "coordinate_transformation_mode": frozenset(resize.COORDINATES),
    "keep_aspect_ratio_policy": frozenset({"stretch"}),
    "mode": frozenset({"constant", "nearest"}),
}
