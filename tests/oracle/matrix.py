"""Products of matrices."""

import numpy as np

from tests.oracle.activation import ACTIVATIONS, activate
from tests.oracle.base import Array, Call, Operator, wide


def _product(call: Call) -> Array:
    """Return Gemm before any activation, in the type to compute in, [M, N]."""
    a, b = wide(call.input(0)), wide(call.input(1))
    if call.attribute("transA", 0):
        a = a.T
    if call.attribute("transB", 0):
        b = b.T
    result = call.attribute("alpha", 1.0) * (a @ b)
    c = call.optional(2)
    if c is not None:
        result = result + call.attribute("beta", 1.0) * wide(c)
    return np.asarray(result)


def _gemm(call: Call) -> list[Array]:
    return [_product(call).astype(call.input(0).dtype)]


def _fused_gemm(call: Call) -> list[Array]:
    """FusedGemm: the activation's parameters are attributes with a prefix."""
    name = call.attribute("activation")
    parameters = [
        call.attribute(f"activation_{parameter}", default)
        for parameter, default in (ACTIVATIONS[name].parameters if name else ())
    ]
    return [activate(_product(call), name, parameters).astype(call.input(0).dtype)]


def _matmul(call: Call) -> list[Array]:
    a = call.input(0)
    return [np.matmul(wide(a), wide(call.input(1))).astype(a.dtype)]


OPERATORS: dict[str, Operator] = {"Gemm": _gemm, "MatMul": _matmul}
FUSED_OPERATORS: dict[str, Operator] = {"FusedGemm": _fused_gemm}
