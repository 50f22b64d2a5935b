"""Operators that make each element of a window: convolutions, pools, resizing."""

from typing import Any

from models.network.catalogue.functions import with_activation
from models.network.names import Op
from models.network.operators.convolution import convolution, transposed_convolution
from models.network.operators.on_bytes import max_pool, on_bytes
from models.network.operators.pooling import pool
from models.network.operators.resizing import resize
from models.network.records import (
    BIAS,
    BYTES,
    DATA,
    PARAMETER,
    RESULT,
    SCALE,
    SHAPE,
    WEIGHT,
    ZERO_POINT,
    Elements,
    OperandRecord,
    OperatorRecord,
    Quantisable,
    Reader,
    along,
    optional,
    record,
    signed,
)

_WINDOWS = {"auto_pad": "NOTSET"}


def _convolution(
    name: Op,
    of: Op,
    read: Reader | None,
    *operands: OperandRecord,
    quantised: bool = False,
    **traits: Any,
) -> OperatorRecord:
    return record(
        name,
        operands,
        "windowed",
        "quantised" if quantised else "computed",
        of=of,
        read=read,
        attributes=_WINDOWS | {"group": 1},
        layer=True,
        **traits,
    )


def _pool(
    name: Op,
    of: Op,
    read: Reader | None,
    elements: Elements,
    *operands: OperandRecord,
    on_bytes: bool = False,
    channels_last: bool = False,
    quantisable: Quantisable = "no",
    **attributes: Any,
) -> OperatorRecord:
    return record(
        name,
        operands,
        "windowed",
        elements,
        of=of,
        read=read,
        attributes=_WINDOWS | {"ceil_mode": 0} | attributes,
        on_bytes=on_bytes,
        channels_last=channels_last,
        quantisable=quantisable,
    )


def _resize(name: Op, of: Op, *operands: OperandRecord, **traits: Any) -> OperatorRecord:
    traits = {**traits, "attributes": {"mode": "nearest"}}
    return record(name, operands, "resampling", "computed", of=of, read=resize, **traits)


_WEIGHTS = (DATA, signed(along(WEIGHT, 0)), *optional(signed(along(BIAS, 0))))
_SUM = optional(DATA)
_FILTERS = (along(WEIGHT, 0), along(SCALE, 0), along(ZERO_POINT, 0))
_OF_BYTES = (*BYTES, *_FILTERS, *RESULT, *optional(along(BIAS, 0)))
_INTEGERS = (DATA, along(WEIGHT, 0), *optional(ZERO_POINT, along(ZERO_POINT, 0)))
_SPREAD = (DATA, signed(along(WEIGHT, 1)), *optional(signed(along(BIAS, 0))))
_SIZES = optional(PARAMETER, SHAPE, SHAPE)

_CONV = _convolution(Op.Conv, Op.Conv, convolution, *_WEIGHTS, quantisable="yes")
_ON_BYTES: Any = {"quantised": True, "on_bytes": True}
_MEANS = _pool(
    *(Op.AveragePool, Op.AveragePool, pool("mean"), "computed", DATA),
    quantisable="with_last_layer",
    count_include_pad=0,
)
_LARGEST = _pool(
    *(Op.MaxPool, Op.MaxPool, max_pool, "selected", DATA), quantisable="with_last_layer"
)

ROWS = (
    _CONV,
    _MEANS,
    _LARGEST,
    _convolution(Op.BlockedConv, Op.Conv, with_activation(convolution), *_WEIGHTS, *_SUM),
    _convolution(Op.ConvInteger, Op.ConvInteger, None, *_INTEGERS, quantised=True),
    _convolution(Op.ConvTranspose, Op.ConvTranspose, transposed_convolution, *_SPREAD),
    _convolution(Op.FusedConv, Op.Conv, with_activation(convolution), *_WEIGHTS, *_SUM),
    _convolution(Op.MicrosoftQLinearConv, Op.Conv, on_bytes(_CONV), *_OF_BYTES, **_ON_BYTES),
    _convolution(Op.QLinearConv, Op.Conv, on_bytes(_CONV), *_OF_BYTES, **_ON_BYTES),
    _pool(
        Op.BlockedAveragePool, Op.AveragePool, pool("mean"), "computed", DATA, count_include_pad=0
    ),
    _pool(Op.BlockedMaxPool, Op.MaxPool, pool("largest"), "selected", DATA),
    _pool(Op.LpPool, Op.LpPool, None, "computed", DATA, p=2),
    _pool(
        *(Op.NhwcMaxPool, Op.MaxPool, max_pool, "selected", DATA),
        on_bytes=True,
        channels_last=True,
    ),
    _pool(
        *(Op.QLinearAveragePool, Op.AveragePool, on_bytes(_MEANS), "quantised", *BYTES, *RESULT),
        on_bytes=True,
        count_include_pad=0,
    ),
    _resize(Op.BlockedUpsample, Op.Upsample, DATA),
    _resize(Op.Resize, Op.Resize, DATA, *_SIZES, quantisable="with_last_layer"),
    _resize(Op.Upsample, Op.Upsample, DATA, *optional(SHAPE)),
)
