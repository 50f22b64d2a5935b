"""Operators that are looked into no further: attention, recurrence, control flow, selection, random."""

from typing import Any

from models.network.names import Op
from models.network.records import (
    BIAS,
    DATA,
    PARAMETER,
    SCALE,
    SHAPE,
    WEIGHT,
    ZERO_POINT,
    OperandRecord,
    OperatorRecord,
    Versions,
    along,
    record,
    sizing,
)


def _opaque(
    name: Op, versions: Versions, *operands: OperandRecord, **traits: Any
) -> OperatorRecord:
    return record(name, versions, operands, "opaque", "computed", **traits)


def _attention(name: Op, versions: Versions, *operands: OperandRecord) -> OperatorRecord:
    return record(name, versions, operands, "attention", "computed")


def _variadic(
    name: Op, versions: Versions, *operands: OperandRecord, **traits: Any
) -> OperatorRecord:
    """One that takes any count of tensors last."""
    return record(name, versions, (*operands, DATA), "opaque", "computed", variadic=1, **traits)


_RECURRENT = (DATA, WEIGHT, WEIGHT, BIAS, PARAMETER, DATA)
_COLUMNS, _SCALES, _ZEROS = along(WEIGHT, -1), along(SCALE, 0), along(ZERO_POINT, 0)
_QUANTISED_LSTM = (
    *(DATA, _COLUMNS, _COLUMNS, BIAS, PARAMETER, DATA, DATA, WEIGHT),
    *[_SCALES, _ZEROS] * 2,
)
_QUANTISED_ATTENTION = (DATA, _COLUMNS, BIAS, SCALE, SCALE, PARAMETER, ZERO_POINT, _ZEROS, DATA)
_FUSED_ATTENTION = (
    BIAS,
    PARAMETER,
    DATA,
    DATA,
    PARAMETER,
)
_MULTI_HEAD_ATTENTION = (
    DATA,
    DATA,
    BIAS,
    PARAMETER,
    *[DATA] * 3,
    *[PARAMETER] * 2,
)
ROWS = (
    _attention(Op.Attention, (23, 24, 25), DATA, DATA, DATA, *[DATA] * 3, PARAMETER),
    _attention(Op.MicrosoftAttention, (1,), DATA, WEIGHT, *_FUSED_ATTENTION),
    _attention(Op.MultiHeadAttention, (1,), DATA, *_MULTI_HEAD_ATTENTION),
    _opaque(Op.Bernoulli, (15, 22), DATA, draws=True, limited="all"),
    _opaque(Op.Compress, (9, 11, 28), DATA, PARAMETER, jumps=True),
    _opaque(Op.Constant, (1, 9, 11, 12, 13, 19, 21, 23, 24, 25)),
    _opaque(Op.ConstantOfShape, (9, 20, 21, 23, 24, 25), sizing(SHAPE), limited="all"),
    _variadic(Op.Einsum, (12, 28)),
    record(Op.DynamicQuantizeLSTM, (1,), _QUANTISED_LSTM, "opaque", "quantised", jumps=True),
    _opaque(Op.EyeLike, (9, 22), DATA, limited="all"),
    _opaque(Op.GRU, (7, 14, 22), *_RECURRENT),
    _opaque(Op.GridSample, (16, 20, 22), DATA, DATA),
    _opaque(Op.If, (1, 11, 13, 16, 19, 21, 23, 24, 25), PARAMETER),
    _opaque(Op.LSTM, (7, 14, 22), *_RECURRENT, DATA, WEIGHT),
    _variadic(Op.Loop, (1, 11, 13, 16, 19, 21, 23, 24, 25), PARAMETER, PARAMETER),
    _opaque(Op.Multinomial, (7, 22), DATA, draws=True, limited="all"),
    _opaque(
        Op.NonMaxSuppression, (10, 11), DATA, DATA, *[PARAMETER] * 3, jumps=True, limited="all"
    ),
    _opaque(Op.NonZero, (9, 13), DATA, jumps=True, limited="all"),
    _opaque(Op.OneHot, (9, 11, 28), DATA, sizing(PARAMETER), PARAMETER),
    record(Op.QAttention, (1,), _QUANTISED_ATTENTION, "attention", "quantised"),
    _opaque(Op.RNN, (7, 14, 22), *_RECURRENT),
    _opaque(Op.RandomNormal, (1, 22), draws=True, limited="all"),
    _opaque(Op.RandomNormalLike, (1, 22), DATA, draws=True, limited="all"),
    _opaque(Op.RandomUniform, (1, 22), draws=True, limited="all"),
    _opaque(Op.RandomUniformLike, (1, 22), DATA, draws=True, limited="all"),
    _opaque(Op.Range, (11, 27), *[sizing(PARAMETER)] * 3),
    _opaque(Op.RoiAlign, (10, 16, 22), DATA, DATA, PARAMETER),
    _variadic(Op.Scan, (8, 9, 11, 16, 19, 21, 23, 24, 25)),
    _opaque(Op.ScatterElements, (11, 13, 16, 18), DATA, PARAMETER, DATA),
    _opaque(Op.ScatterND, (11, 13, 16, 18), DATA, PARAMETER, DATA),
    _opaque(Op.Shape, (1, 13, 15, 19, 21, 23, 24, 25), DATA, limited="lengths"),
    _opaque(Op.Size, (1, 13, 19, 21, 23, 24, 25), DATA, limited="lengths"),
    _opaque(Op.TopK, (1, 10, 11, 24), DATA, PARAMETER, jumps=True, limited="others"),
    _opaque(Op.Unique, (11, 28), DATA, jumps=True, limited="others"),
)
