"""Operators that are looked into no further: attention, recurrence, control flow, selection, random."""

from typing import Any

from models.network.names import Op
from models.network.records import (
    BIAS,
    DATA,
    PARAMETER,
    SHAPE,
    WEIGHT,
    OperandRecord,
    OperatorRecord,
    optional,
    record,
)


def _opaque(name: Op, *operands: OperandRecord, **traits: Any) -> OperatorRecord:
    return record(name, operands, "opaque", "computed", **traits)


def _attention(name: Op, *operands: OperandRecord) -> OperatorRecord:
    return record(name, operands, "attention", "computed")


def _variadic(name: Op, *operands: OperandRecord, **traits: Any) -> OperatorRecord:
    """One that takes any count of tensors last."""
    return record(name, (*operands, DATA), "opaque", "computed", variadic=1, **traits)


_RECURRENT = (DATA, WEIGHT, WEIGHT, *optional(BIAS, PARAMETER, DATA))
_FUSED_ATTENTION = optional(BIAS, PARAMETER, DATA, DATA, PARAMETER)
_MULTI_HEAD_ATTENTION = optional(DATA, DATA, BIAS, PARAMETER, *[DATA] * 3, *[PARAMETER] * 2)
ROWS = (
    _attention(Op.Attention, DATA, DATA, DATA, *optional(*[DATA] * 3, PARAMETER)),
    _attention(Op.MicrosoftAttention, DATA, WEIGHT, *_FUSED_ATTENTION),
    _attention(Op.MultiHeadAttention, DATA, *_MULTI_HEAD_ATTENTION),
    _opaque(Op.Bernoulli, DATA, draws=True),
    _opaque(Op.Compress, DATA, PARAMETER, jumps=True),
    _opaque(Op.Constant),
    _opaque(Op.ConstantOfShape, SHAPE),
    _variadic(Op.Einsum),
    _opaque(Op.EyeLike, DATA),
    _opaque(Op.GRU, *_RECURRENT),
    _opaque(Op.GridSample, DATA, DATA),
    _opaque(Op.If, PARAMETER),
    _opaque(Op.LSTM, *_RECURRENT, *optional(DATA, WEIGHT)),
    _variadic(Op.Loop, *optional(PARAMETER, PARAMETER)),
    _opaque(Op.Multinomial, DATA, draws=True),
    _opaque(Op.NonMaxSuppression, DATA, DATA, *optional(*[PARAMETER] * 3), jumps=True),
    _opaque(Op.NonZero, DATA, jumps=True),
    _opaque(Op.OneHot, DATA, PARAMETER, PARAMETER),
    _opaque(Op.RNN, *_RECURRENT),
    _opaque(Op.RandomNormal, draws=True),
    _opaque(Op.RandomNormalLike, DATA, draws=True),
    _opaque(Op.RandomUniform, draws=True),
    _opaque(Op.RandomUniformLike, DATA, draws=True),
    _opaque(Op.Range, PARAMETER, PARAMETER, PARAMETER),
    _opaque(Op.RoiAlign, DATA, DATA, PARAMETER),
    _variadic(Op.Scan),
    _opaque(Op.ScatterElements, DATA, PARAMETER, DATA),
    _opaque(Op.ScatterND, DATA, PARAMETER, DATA),
    _opaque(Op.Shape, DATA),
    _opaque(Op.Size, DATA),
    _opaque(Op.TopK, DATA, PARAMETER, jumps=True),
    _opaque(Op.Unique, DATA, jumps=True),
)
