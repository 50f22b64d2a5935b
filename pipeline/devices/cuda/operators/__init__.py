"""A table: from the record of an operator (models/network/operators) to what launches its kernels."""

from collections.abc import Callable, Mapping
from typing import Any

from models.network.node import UnsuitedError
from models.network.operators.reading import (
    BatchNorm,
    Combine,
    Convolution,
    Gather,
    GroupNorm,
    Map,
    MatrixProduct,
    Movement,
    OnBytes,
    Operator,
    Pad,
    Pooling,
    Reduction,
    Resize,
    ResponseNorm,
    Softmax,
)
from pipeline.devices.cuda.call import KernelLaunch
from pipeline.devices.cuda.operators import (
    elements,
    matrix,
    movement,
    normalisation,
    pooling,
    resizing,
)
from pipeline.devices.cuda.operators.convolutions.convolution import convolution
from pipeline.devices.cuda.scope import Scope

#: Reshape has no kernel: another shape is another name (lowering.py).
_LAUNCHES: Mapping[type[Operator], Callable[[Any, Scope], list[KernelLaunch]]] = {
    BatchNorm: normalisation.batch_norm,
    Combine: elements.combined,
    Convolution: convolution,
    Gather: movement.gathered,
    GroupNorm: normalisation.group_norm,
    Map: elements.mapped,
    Movement: movement.moved,
    Pad: movement.padded,
    Pooling: pooling.pooled,
    MatrixProduct: matrix.product,
    Reduction: pooling.reduced,
    Resize: resizing.resized,
    ResponseNorm: normalisation.response_norm,
    Softmax: normalisation.softmax,
}


def launches(operator: Operator, scope: Scope) -> list[KernelLaunch]:
    """Return what computes ``operator``, in order.

    Raises:
        UnsuitedError: no kernel does, or a tensor is too large.
    """
    found = _LAUNCHES.get(type(operator))
    if found is None:
        raise UnsuitedError("no kernel of bytes" if isinstance(operator, OnBytes) else "no kernel")
    return found(operator, scope)
