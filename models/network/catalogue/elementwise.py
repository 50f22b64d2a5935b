"""Operators that make each element of elements in the same position: of one number, of two, of any type."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    Meaning,
    OperandRecord,
    OperatorRecord,
    Quantisable,
    of_result,
    optional,
    record,
    signed,
)

Floats = NDArray[Any]


def _map(
    name: Op,
    function: Kind,
    meaning: Meaning,
    keeps_order: KeepsOrder,
    *,
    of: Op | None = None,
    jumps: bool = False,
    quantisable: Quantisable = "no",
    operands: tuple[OperandRecord, ...] = (DATA,),
    **attributes: Any,
) -> OperatorRecord:
    """A function of each element; ``attributes``: its parameters with their defaults."""
    return record(
        name,
        operands,
        "elementwise",
        "computed",
        of=of,
        attributes=attributes,
        function=function,
        meaning=meaning,
        read=mapped,
        keeps_order=keeps_order,
        jumps=jumps,
        quantisable=quantisable,
    )


def _pair(
    name: Op,
    function: Arithmetic,
    meaning: Meaning,
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
        operands,
        "elementwise",
        "selected" if selects else "computed",
        attributes=attributes,
        variadic=len(operands) == 1,
        function=function,
        meaning=meaning,
        read=combined,
        commutes=commutes,
        jumps=jumps,
        quantisable=quantisable,
    )


def _of_bytes(name: Op, of: Op, *operands: OperandRecord, **traits: Any) -> OperatorRecord:
    """One on the numbers that bytes stand for."""
    row = next(row for row in (*_MAPS, *_PAIRS) if row.name is of)
    traits = {**traits, "read": on_bytes(row), "on_bytes": True}
    return record(name, operands, "elementwise", "quantised", of=of, **traits)


def _conversion(name: Op, of: Op, *operands: OperandRecord, jumps: bool) -> OperatorRecord:
    """Floats to bytes or back, with one scale or one for each channel."""
    traits: Any = {"attributes": {"axis": 1}, "keeps_order": "yes", "jumps": jumps, "read": convert}
    return record(name, operands, "elementwise", "quantised", of=of, **traits)


def _other(name: Op, *operands: OperandRecord, **traits: Any) -> OperatorRecord:
    """One of integers, of truth values, or of several steps: no function that kernels have as such."""
    return record(name, operands, "elementwise", "computed", **traits)


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(np.exp(-np.logaddexp(0, -x)))


def _softplus(x: Floats) -> Floats:
    return np.asarray(np.logaddexp(0, x))


def _less_one(x: Floats) -> Floats:
    """exp(x) - 1 of what is not above zero."""
    return np.asarray(np.expm1(np.minimum(x, 0)))


def _erf(x: Floats) -> Floats:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x))


def _tanh_gelu(x: Floats) -> Floats:
    return np.asarray(x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2)


def _gelu(x: Floats) -> Floats:
    return np.asarray(x * (1 + _erf(x / math.sqrt(2))) / 2)


def _silu(x: Floats, alpha: float) -> Floats:
    return x * _sigmoid(alpha * x)


def _hard_sigmoid(x: Floats, alpha: float, beta: float) -> Floats:
    return np.asarray(np.clip(alpha * x + beta, 0, 1))


def _below(negative: Callable[..., Floats]) -> Meaning:
    """Return x where it is not negative, and what ``negative`` makes of it and of parameters elsewhere."""
    return lambda x, *parameters: np.where(x < 0, negative(x, *parameters), x)


_MAPS = (
    _map(Op.Abs, "absolute", np.abs, "no"),
    _map(Op.Ceil, "ceil", np.ceil, "yes", jumps=True),
    _map(Op.Celu, "celu", _below(lambda x, a: a * _less_one(x / a)), "by_alpha", alpha=1.0),
    _map(
        Op.Clip,
        "clip",
        lambda x, low, high: np.minimum(np.maximum(x, low), high),
        "yes",
        operands=(DATA, *optional(PARAMETER, PARAMETER)),
        quantisable="with_last_layer",
    ),
    _map(Op.Elu, "elu", _below(lambda x, a: a * _less_one(x)), "by_alpha", alpha=1.0),
    _map(Op.Erf, "erf", _erf, "yes"),
    _map(Op.Exp, "exp", np.exp, "yes"),
    _map(Op.FastGelu, "gelu_tanh", _tanh_gelu, "no", operands=(DATA, *optional(BIAS)), of=Op.Gelu),
    _map(Op.Floor, "floor", np.floor, "yes", jumps=True),
    _map(Op.Gelu, "gelu", _gelu, "no", approximate="none"),
    _map(Op.HardSigmoid, "hard_sigmoid", _hard_sigmoid, "by_alpha", alpha=0.2, beta=0.5),
    _map(Op.HardSwish, "hard_swish", lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5), "no"),
    _map(
        Op.LeakyRelu,
        "leaky_relu",
        _below(lambda x, a: a * x),
        "by_alpha",
        quantisable="with_last_layer",
        alpha=0.01,
    ),
    _map(Op.Log, "log", np.log, "yes"),
    _map(Op.MicrosoftGelu, "gelu", _gelu, "no", of=Op.Gelu),
    _map(Op.Mish, "mish", lambda x, a: x * np.tanh(_softplus(a * x)), "no", alpha=1.0),
    _map(Op.Neg, "negative", np.negative, "no"),
    _map(Op.QuickGelu, "silu", _silu, "no", of=Op.Swish, alpha=1.702),
    _map(Op.Reciprocal, "reciprocal", np.reciprocal, "no"),
    _map(Op.Relu, "relu", lambda x: np.maximum(x, 0), "yes", quantisable="with_last_layer"),
    _map(Op.Round, "round", np.round, "yes", jumps=True),
    _map(
        Op.Selu,
        "selu",
        lambda x, a, scale: scale * np.where(x < 0, a * _less_one(x), x),
        "no",
        alpha=1.6732632,
        gamma=1.050701,
    ),
    _map(Op.Sigmoid, "sigmoid", _sigmoid, "yes", quantisable="yes"),
    _map(Op.Sign, "sign", np.sign, "yes", jumps=True),
    _map(Op.Softplus, "softplus", _softplus, "yes"),
    _map(Op.Softsign, "softsign", lambda x: x / (1 + np.abs(x)), "yes"),
    _map(Op.Sqrt, "sqrt", np.sqrt, "yes"),
    _map(Op.Swish, "silu", _silu, "no", alpha=1.0),
    _map(Op.Tanh, "tanh", np.tanh, "yes"),
    _map(
        Op.ThresholdedRelu,
        "thresholded_relu",
        lambda x, a: np.where(x > a, x, 0),
        "by_alpha",
        jumps=True,
        alpha=1.0,
    ),
)
_PAIRS = (
    _pair(Op.Add, "add", np.add, DATA, DATA, commutes=True, quantisable="yes"),
    _pair(Op.Div, "divide", np.divide, DATA, DATA),
    _pair(Op.Max, "larger", np.maximum, DATA, selects=True, commutes=True),
    _pair(Op.Min, "smaller", np.minimum, DATA, selects=True, commutes=True),
    _pair(Op.Mod, "modulo", np.fmod, DATA, DATA, jumps=True, fmod=0),
    _pair(Op.Mul, "multiply", np.multiply, DATA, DATA, commutes=True, quantisable="yes"),
    _pair(Op.PRelu, "scale_negative", _below(lambda x, slope: x * slope), DATA, WEIGHT),
    _pair(Op.Pow, "power", np.power, DATA, DATA),
    _pair(Op.Sub, "subtract", np.subtract, DATA, DATA),
    _pair(Op.Sum, "add", np.add, DATA, commutes=True),
)
#: Of bytes with scales, each of them an operator on the numbers.
_OF_BYTES = (
    _of_bytes(Op.QLinearAdd, Op.Add, *BYTES, *BYTES, *RESULT, commutes=True),
    _of_bytes(
        *(Op.QLinearLeakyRelu, Op.LeakyRelu, *BYTES, *RESULT),
        keeps_order="by_alpha",
        attributes={"alpha": 0.01},
    ),
    _of_bytes(Op.QLinearMul, Op.Mul, *BYTES, *BYTES, *RESULT, commutes=True),
    _of_bytes(Op.QLinearSigmoid, Op.Sigmoid, *BYTES, *RESULT, keeps_order="yes"),
)
_TO_BYTES = (DATA, of_result(SCALE), *optional(of_result(ZERO_POINT)))
_FROM_BYTES = (DATA, SCALE, *optional(ZERO_POINT))
_CONVERSIONS = (
    _conversion(Op.DequantizeLinear, Op.DequantizeLinear, *_FROM_BYTES, jumps=False),
    _conversion(Op.MicrosoftDequantizeLinear, Op.DequantizeLinear, *_FROM_BYTES, jumps=False),
    _conversion(Op.MicrosoftQuantizeLinear, Op.QuantizeLinear, *_TO_BYTES, jumps=True),
    _conversion(Op.QuantizeLinear, Op.QuantizeLinear, *_TO_BYTES, jumps=True),
)
_NORM = (DATA, signed(WEIGHT), signed(BIAS), STATISTIC, STATISTIC)
_OTHERS = (
    _other(Op.And, DATA, DATA, commutes=True),
    _other(Op.BatchNormalization, *_NORM, read=batch_norm, attributes={"epsilon": 1e-5}),
    _other(Op.BiasGelu, DATA, BIAS),
    record(Op.ByteTable, (DATA, WEIGHT), "elementwise", "quantised", read=look_up),
    _other(Op.Cast, DATA, passes_weights=True),
    _other(Op.CastLike, DATA, PARAMETER, passes_weights=True),
    _other(Op.Cos, DATA),
    _other(Op.Equal, DATA, DATA, commutes=True, jumps=True),
    _other(Op.Greater, DATA, DATA, jumps=True),
    _other(Op.GreaterOrEqual, DATA, DATA, jumps=True),
    _other(Op.IsInf, DATA),
    _other(Op.IsNaN, DATA),
    _other(Op.Less, DATA, DATA, jumps=True),
    _other(Op.LessOrEqual, DATA, DATA, jumps=True),
    _other(Op.Mean, DATA, variadic=1, commutes=True),
    _other(Op.Not, DATA, jumps=True),
    _other(Op.Or, DATA, DATA, commutes=True),
    _other(Op.Shrink, DATA, jumps=True, attributes={"bias": 0.0, "lambd": 0.5}),
    _other(Op.Sin, DATA),
    _other(Op.Where, PARAMETER, DATA, DATA),
    _other(Op.Xor, DATA, DATA, commutes=True),
)

ROWS = (*_MAPS, *_PAIRS, *_OF_BYTES, *_CONVERSIONS, *_OTHERS)
