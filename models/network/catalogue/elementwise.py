"""Operators that make each element of elements in the same position: of one number, of two, of any type."""

from typing import Any

from models.network.activations import Arithmetic, Kind
from models.network.names import Op
from models.network.operators.elements import combined, mapped
from models.network.operators.normalisation import batch_norm
from models.network.operators.on_bytes import convert, look_up, on_bytes
from models.network.records import (
    BIAS,
    BYTES,
    DATA,
    PARAMETER,
    RESULT,
    SCALE,
    STATISTIC,
    WEIGHT,
    ZERO_POINT,
    KeepsOrder,
    Limited,
    OperandRecord,
    OperatorRecord,
    Quantisable,
    Versions,
    of_result,
    record,
    signed,
)


def _map(
    name: Op,
    versions: Versions,
    function: Kind,
    keeps_order: KeepsOrder,
    *,
    of: Op | None = None,
    jumps: bool = False,
    limited: Limited = "none",
    quantisable: Quantisable = "no",
    operands: tuple[OperandRecord, ...] = (DATA,),
    **attributes: Any,
) -> OperatorRecord:
    """A function of each element; ``attributes``: its parameters with their defaults."""
    return record(
        name,
        versions,
        operands,
        "elementwise",
        "computed",
        of=of,
        attributes=attributes,
        function=function,
        read=mapped,
        keeps_order=keeps_order,
        jumps=jumps,
        limited=limited,
        quantisable=quantisable,
    )


def _pair(
    name: Op,
    versions: Versions,
    function: Arithmetic,
    *operands: OperandRecord,
    selects: bool = False,
    commutes: bool = False,
    jumps: bool = False,
    quantisable: Quantisable = "no",
    **attributes: Any,
) -> OperatorRecord:
    """A function of two; with one operand: of any count of them, joined from the left."""
    return record(
        name,
        versions,
        operands,
        "elementwise",
        "selected" if selects else "computed",
        attributes=attributes,
        variadic=len(operands) == 1,
        function=function,
        read=combined,
        commutes=commutes,
        jumps=jumps,
        quantisable=quantisable,
    )


def _of_bytes(
    name: Op, versions: Versions, of: Op, *operands: OperandRecord, **traits: Any
) -> OperatorRecord:
    """One on the numbers that bytes stand for."""
    row = next(row for row in (*_MAPS, *_PAIRS) if row.name is of)
    traits = {**traits, "read": on_bytes(row), "on_bytes": True}
    return record(name, versions, operands, "elementwise", "quantised", of=of, **traits)


def _conversion(
    name: Op, versions: Versions, of: Op, *operands: OperandRecord, jumps: bool
) -> OperatorRecord:
    """Floats to bytes or back, with one scale or one for each channel."""
    traits: Any = {"attributes": {"axis": 1}, "keeps_order": "yes", "jumps": jumps, "read": convert}
    traits["limited"] = "all" if jumps else "none"  # bytes are
    return record(name, versions, operands, "elementwise", "quantised", of=of, **traits)


def _other(name: Op, versions: Versions, *operands: OperandRecord, **traits: Any) -> OperatorRecord:
    """One of integers, of truth values, or of several steps: no function that kernels have as such."""
    return record(name, versions, operands, "elementwise", "computed", **traits)


_MAPS = (
    _map(Op.Abs, (6, 13), "absolute", "no"),
    _map(Op.Ceil, (6, 13), "ceil", "yes", jumps=True),
    _map(Op.Celu, (12, 28), "celu", "by_alpha", alpha=1.0),
    _map(
        Op.Clip,
        (6, 11, 12, 13),
        "clip",
        "yes",
        operands=(DATA, PARAMETER, PARAMETER),
        quantisable="with_last_layer",
    ),
    _map(Op.Elu, (6, 22), "elu", "by_alpha", alpha=1.0),
    _map(Op.Erf, (9, 13), "erf", "yes", limited="all"),
    _map(Op.Exp, (6, 13), "exp", "yes"),
    _map(
        Op.FastGelu,
        (1,),
        "gelu_tanh",
        "no",
        operands=(DATA, BIAS),
        of=Op.Gelu,
    ),
    _map(Op.Floor, (6, 13), "floor", "yes", jumps=True),
    _map(Op.Gelu, (20,), "gelu", "no", approximate="none"),
    _map(
        *(Op.HardSigmoid, (6, 22), "hard_sigmoid", "by_alpha"), limited="all", alpha=0.2, beta=0.5
    ),
    _map(Op.HardSwish, (14, 22), "hard_swish", "no"),
    _map(
        Op.LeakyRelu,
        (6, 16),
        "leaky_relu",
        "by_alpha",
        quantisable="with_last_layer",
        alpha=0.01,
    ),
    _map(Op.Log, (6, 13), "log", "yes"),
    _map(Op.MicrosoftGelu, (1,), "gelu", "no", of=Op.Gelu),
    _map(Op.Mish, (18, 22), "mish", "no", alpha=1.0),
    _map(Op.Neg, (6, 13), "negative", "no"),
    _map(Op.QuickGelu, (1,), "silu", "no", of=Op.Swish, alpha=1.702),
    _map(Op.Reciprocal, (6, 13), "reciprocal", "no"),
    _map(
        Op.Relu,
        (6, 13, 14),
        "relu",
        "yes",
        quantisable="with_last_layer",
    ),
    _map(Op.Round, (11, 22), "round", "yes", jumps=True),
    _map(
        Op.Selu,
        (6, 22),
        "selu",
        "no",
        alpha=1.6732632,
        gamma=1.050701,
    ),
    _map(Op.Sigmoid, (6, 13), "sigmoid", "yes", limited="all", quantisable="yes"),
    _map(Op.Sign, (9, 13), "sign", "yes", jumps=True, limited="all"),
    _map(Op.Softplus, (1, 22), "softplus", "yes"),
    _map(Op.Softsign, (1, 22), "softsign", "yes", limited="all"),
    _map(Op.Sqrt, (6, 13), "sqrt", "yes"),
    _map(Op.Swish, (24,), "silu", "no", alpha=1.0),
    _map(Op.Tanh, (6, 13), "tanh", "yes", limited="all"),
    _map(
        Op.ThresholdedRelu,
        (1, 10, 22),
        "thresholded_relu",
        "by_alpha",
        jumps=True,
        alpha=1.0,
    ),
)
_PAIRS = (
    _pair(Op.Add, (7, 13, 14), "add", DATA, DATA, commutes=True, quantisable="yes"),
    _pair(Op.Div, (7, 13, 14), "divide", DATA, DATA),
    _pair(Op.Max, (6, 8, 12, 13), "larger", DATA, selects=True, commutes=True),
    _pair(Op.Min, (6, 8, 12, 13), "smaller", DATA, selects=True, commutes=True),
    _pair(Op.Mod, (10, 13, 28), "modulo", DATA, DATA, jumps=True, fmod=0),
    _pair(Op.Mul, (7, 13, 14), "multiply", DATA, DATA, commutes=True, quantisable="yes"),
    _pair(Op.PRelu, (7, 9, 16), "scale_negative", DATA, WEIGHT),
    _pair(Op.Pow, (7, 12, 13, 15), "power", DATA, DATA),
    _pair(Op.Sub, (7, 13, 14), "subtract", DATA, DATA),
    _pair(Op.Sum, (6, 8, 13), "add", DATA, commutes=True),
)
#: Of bytes with scales, each of them an operator on the numbers.
_OF_BYTES = (
    _of_bytes(Op.QLinearAdd, (1,), Op.Add, *BYTES, *BYTES, *RESULT, commutes=True),
    _of_bytes(
        *(Op.QLinearLeakyRelu, (1,), Op.LeakyRelu, *BYTES, *RESULT),
        keeps_order="by_alpha",
        attributes={"alpha": 0.01},
    ),
    _of_bytes(Op.QLinearMul, (1,), Op.Mul, *BYTES, *BYTES, *RESULT, commutes=True),
    _of_bytes(Op.QLinearSigmoid, (1,), Op.Sigmoid, *BYTES, *RESULT, keeps_order="yes"),
)
_TO_BYTES = (DATA, of_result(SCALE), of_result(ZERO_POINT))
_FROM_BYTES = (DATA, SCALE, ZERO_POINT)
_CONVERSIONS = (
    _conversion(
        Op.DequantizeLinear,
        (10, 13, 19, 21, 23, 24, 25, 28),
        Op.DequantizeLinear,
        *_FROM_BYTES,
        jumps=False,
    ),
    _conversion(Op.MicrosoftDequantizeLinear, (1,), Op.DequantizeLinear, *_FROM_BYTES, jumps=False),
    _conversion(Op.MicrosoftQuantizeLinear, (1,), Op.QuantizeLinear, *_TO_BYTES, jumps=True),
    _conversion(
        Op.QuantizeLinear,
        (10, 13, 19, 21, 23, 24, 25, 28),
        Op.QuantizeLinear,
        *_TO_BYTES,
        jumps=True,
    ),
)
_NORM = (DATA, signed(WEIGHT), signed(BIAS), STATISTIC, STATISTIC)
_OTHERS = (
    _other(Op.And, (7,), DATA, DATA, commutes=True, limited="all"),
    _other(
        Op.BatchNormalization, (7, 9, 14, 15), *_NORM, read=batch_norm, attributes={"epsilon": 1e-5}
    ),
    _other(Op.BiasGelu, (1,), DATA, BIAS),
    record(Op.ByteTable, (1,), (DATA, WEIGHT), "elementwise", "quantised", read=look_up),
    _other(
        Op.Cast, (6, 9, 13, 19, 21, 23, 24, 25, 28), DATA, passes_weights=True, limited="chosen"
    ),
    _other(
        *(Op.CastLike, (15, 19, 21, 23, 24, 25), DATA, PARAMETER),
        passes_weights=True,
        limited="chosen",
    ),
    _other(Op.Cos, (7, 22), DATA, limited="all"),
    _other(Op.Equal, (7, 11, 13, 19), DATA, DATA, commutes=True, jumps=True, limited="all"),
    _other(Op.Greater, (7, 9, 13), DATA, DATA, jumps=True, limited="all"),
    _other(Op.GreaterOrEqual, (12, 16), DATA, DATA, jumps=True, limited="all"),
    _other(Op.IsInf, (10, 20), DATA, limited="all"),
    _other(Op.IsNaN, (9, 13, 20), DATA, limited="all"),
    _other(Op.Less, (7, 9, 13), DATA, DATA, jumps=True, limited="all"),
    _other(Op.LessOrEqual, (12, 16), DATA, DATA, jumps=True, limited="all"),
    _other(Op.Mean, (6, 8, 13), DATA, variadic=1, commutes=True),
    _other(Op.Not, (1,), DATA, jumps=True, limited="all"),
    _other(Op.Or, (7,), DATA, DATA, commutes=True, limited="all"),
    _other(Op.Shrink, (9,), DATA, jumps=True, attributes={"bias": 0.0, "lambd": 0.5}),
    _other(Op.Sin, (7, 22), DATA, limited="all"),
    _other(Op.Where, (9, 16), PARAMETER, DATA, DATA, limited="chosen"),
    _other(Op.Xor, (7,), DATA, DATA, commutes=True, limited="all"),
)

ROWS = (*_MAPS, *_PAIRS, *_OF_BYTES, *_CONVERSIONS, *_OTHERS)
