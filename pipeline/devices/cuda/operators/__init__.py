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
from pipeline.devices.cuda.operators import copies, elements_and_pools, products
from pipeline.devices.cuda.operators.convolutions.launching import convolution
from pipeline.devices.cuda.scope import Scope

#: Reshape has no kernel: another shape is another name (lowering.py).
_LAUNCHES: Mapping[type[Operator], Callable[[Any, Scope], list[KernelLaunch]]] = {
    BatchNorm: elements_and_pools.batch_norm,
    Combine: elements_and_pools.combined,
    Convolution: convolution,
    Gather: copies.gathered,
    GroupNorm: elements_and_pools.group_norm,
    Map: elements_and_pools.mapped,
    Movement: copies.moved,
    Pad: copies.padded,
    Pooling: elements_and_pools.pooled,
    MatrixProduct: products.product,
    Reduction: elements_and_pools.reduced,
    Resize: copies.resized,
    ResponseNorm: elements_and_pools.response_norm,
    Softmax: elements_and_pools.softmax,
}


def launches(operator: Operator, scope: Scope) -> list[KernelLaunch]:
    """Return what computes ``operator``, in order.

    Raises:
        UnsuitedError: no kernel does, or a tensor is too large.
    """
    lower = _LAUNCHES.get(type(operator))
    if lower is None:
        raise UnsuitedError("no kernel of bytes" if isinstance(operator, OnBytes) else "no kernel")
    return lower(operator, scope)
