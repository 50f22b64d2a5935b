"""Products of matrices."""

from typing import Any

from models.network.catalogue.functions import with_activation
from models.network.names import Op
from models.network.operators.matrix import gemm, matmul
from models.network.operators.on_bytes import on_bytes
from models.network.records import (
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
    Reader,
    Versions,
    along,
    record,
)

_GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
_MATMUL = {"alpha": 1.0, "transA": 0, "transB": 0}


def _product(
    name: Op,
    versions: Versions,
    of: Op,
    read: Reader | None,
    *operands: OperandRecord,
    quantised: bool = False,
    **traits: Any,
) -> OperatorRecord:
    """A product; weights have output channels last where no attribute turns them."""
    elements: Any = "quantised" if quantised else "computed"
    return record(
        name, versions, operands, "product", elements, of=of, read=read, layer=True, **traits
    )


#: Weights with output channels last; their scales and zero points, one for each channel.
_COLUMNS, _SCALES, _ZEROS = along(WEIGHT, -1), along(SCALE, 0), along(ZERO_POINT, 0)
_BIAS = (along(BIAS, -1),)
_AFFINE = (DATA, _COLUMNS, *_BIAS)
_LEFT = (WEIGHT, SCALE, ZERO_POINT)
_RIGHT = (_COLUMNS, _SCALES, _ZEROS)

_GEMM_ROW = _product(
    Op.Gemm, (7, 9, 11, 13), Op.Gemm, gemm, *_AFFINE, attributes=_GEMM, quantisable="yes"
)

ROWS = (
    _GEMM_ROW,
    _product(
        *(Op.DynamicQuantizeMatMul, (1,), Op.DynamicQuantizeMatMul, None),
        *(DATA, _COLUMNS, _SCALES, _ZEROS, along(BIAS, 0)),
        quantised=True,
        jumps=True,
    ),
    _product(Op.FusedGemm, (1,), Op.Gemm, with_activation(gemm), *_AFFINE, attributes=_GEMM),
    _product(Op.FusedMatMul, (1,), Op.MatMul, matmul, WEIGHT, _COLUMNS, attributes=_MATMUL),
    _product(Op.MatMul, (1, 9, 13), Op.MatMul, matmul, WEIGHT, _COLUMNS, quantisable="yes"),
    _product(
        *(Op.MatMulInteger, (10,), Op.MatMulInteger, None),
        *(WEIGHT, _COLUMNS, ZERO_POINT, _ZEROS),
        quantised=True,
    ),
    _product(
        *(Op.MatMulIntegerToFloat, (1,), Op.MatMulIntegerToFloat, None),
        *(DATA, _COLUMNS, SCALE, _SCALES, ZERO_POINT, _ZEROS, along(BIAS, 0)),
        quantised=True,
    ),
    _product(
        *(Op.MatMulNBits, (1,), Op.MatMulNBits, None),
        *(DATA, WEIGHT, SCALE, ZERO_POINT, PARAMETER, BIAS),
        quantised=True,
    ),
    _product(
        *(Op.QGemm, (1,), Op.Gemm, on_bytes(_GEMM_ROW)),
        *(*BYTES, *_RIGHT, along(BIAS, 0), *RESULT),
        attributes=_MATMUL,
        quantised=True,
        on_bytes=True,
        channels_last=True,
    ),
    _product(
        *(Op.QLinearMatMul, (10, 21), Op.MatMul, None, *_LEFT, *_RIGHT, *RESULT),
        quantised=True,
        on_bytes=True,
    ),
)
