"""Handlers: for each operator what launches its kernels; one family a file, each with its tables."""

from collections.abc import Mapping

from pipeline.devices.cuda.lowering.handlers import (
    convolution,
    elementwise,
    matrix,
    movement,
    normalise,
    padding,
    pooling,
    reduction,
    resize,
)
from pipeline.devices.cuda.lowering.handlers.base import Handler

#: By domain, then by operator. The domain of standard operators is "".
OPERATORS: Mapping[str, Mapping[str, Handler]] = {
    "": (
        convolution.OPERATORS
        | elementwise.OPERATORS
        | matrix.OPERATORS
        | movement.OPERATORS
        | normalise.OPERATORS
        | padding.OPERATORS
        | pooling.OPERATORS
        | reduction.OPERATORS
        | resize.OPERATORS
    ),
    "com.microsoft": (
        convolution.MICROSOFT_OPERATORS
        | elementwise.MICROSOFT_OPERATORS
        | matrix.MICROSOFT_OPERATORS
    ),
}

#: Operators whose result is their first input, under another name and shape.
ALIASES: Mapping[str, frozenset[str]] = {
    "": frozenset({"Identity", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze"}),
}
