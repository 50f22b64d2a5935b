"""Products of matrices."""

from typing import Any

from models.network.catalogue.records import (
    BIAS,
    BYTES,
    DATA,
    PARAMETER,
    RESULT,
    SCALE,
    WEIGHT,
    ZERO_POINT,
    OperandRecord,
    OperatorRecord,
    along,
    optional,
    record,
)
from models.network.names import Op

_GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
_MATMUL = {"alpha": 1.0, "transA": 0, "transB": 0}


def _product(
    name: Op, of: Op, *operands: OperandRecord, quantised: bool = False, **traits: Any
) -> OperatorRecord:
    """A product; weights have output channels last where no attribute turns them."""
    elements: Any = "quantised" if quantised else "computed"
    return record(name, operands, "product", elements, of=of, layer=True, **traits)


#: Weights with output channels last; their scales and zero points, one for each channel.
_COLUMNS, _SCALES, _ZEROS = along(WEIGHT, -1), along(SCALE, 0), along(ZERO_POINT, 0)
_BIAS = optional(along(BIAS, -1))
_AFFINE = (DATA, _COLUMNS, *_BIAS)
_LEFT = (WEIGHT, SCALE, ZERO_POINT)
_RIGHT = (_COLUMNS, _SCALES, _ZEROS)

ROWS = (
    _product(
        *(Op.DynamicQuantizeMatMul, Op.DynamicQuantizeMatMul),
        *(DATA, _COLUMNS, _SCALES, *optional(_ZEROS, along(BIAS, 0))),
        quantised=True,
        jumps=True,
    ),
    _product(Op.FusedGemm, Op.Gemm, *_AFFINE, attributes=_GEMM),
    _product(Op.FusedMatMul, Op.MatMul, WEIGHT, _COLUMNS, attributes=_MATMUL),
    _product(Op.Gemm, Op.Gemm, *_AFFINE, attributes=_GEMM, quantisable="yes"),
    _product(Op.MatMul, Op.MatMul, WEIGHT, _COLUMNS, quantisable="yes"),
    _product(
        *(Op.MatMulInteger, Op.MatMulInteger),
        *(WEIGHT, _COLUMNS, *optional(ZERO_POINT, _ZEROS)),
        quantised=True,
    ),
    _product(
        *(Op.MatMulIntegerToFloat, Op.MatMulIntegerToFloat),
        *(DATA, _COLUMNS, SCALE, _SCALES, *optional(ZERO_POINT, _ZEROS, along(BIAS, 0))),
        quantised=True,
    ),
    _product(
        *(Op.MatMulNBits, Op.MatMulNBits),
        *(DATA, WEIGHT, SCALE, *optional(ZERO_POINT, PARAMETER, BIAS)),
        quantised=True,
    ),
    _product(
        *(Op.QGemm, Op.Gemm),
        *(*BYTES, *_RIGHT, *optional(along(BIAS, 0)), *RESULT),
        attributes=_MATMUL,
        quantised=True,
        on_bytes=True,
        channels_last=True,
    ),
    _product(
        *(Op.QLinearMatMul, Op.MatMul, *_LEFT, *_RIGHT, *RESULT),
        quantised=True,
        on_bytes=True,
    ),
)
