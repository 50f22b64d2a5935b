"""Operators that make each element of a window: convolutions, pools, resizing."""

from typing import Any

from models.network.catalogue.records import (
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
    along,
    optional,
    record,
    signed,
)
from models.network.names import Op

_WINDOWS = {"auto_pad": "NOTSET"}


def _convolution(
    name: Op, of: Op, *operands: OperandRecord, quantised: bool = False, **traits: Any
) -> OperatorRecord:
    return record(
        name,
        operands,
        "windowed",
        "quantised" if quantised else "computed",
        of=of,
        attributes=_WINDOWS | {"group": 1},
        layer=True,
        **traits,
    )


def _pool(
    name: Op,
    of: Op,
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
        attributes=_WINDOWS | {"ceil_mode": 0} | attributes,
        on_bytes=on_bytes,
        channels_last=channels_last,
        quantisable=quantisable,
    )


def _resize(name: Op, of: Op, *operands: OperandRecord, **traits: Any) -> OperatorRecord:
    attributes = {"mode": "nearest"}
    return record(name, operands, "windowed", "computed", of=of, attributes=attributes, **traits)


_WEIGHTS = (DATA, signed(along(WEIGHT, 0)), *optional(signed(along(BIAS, 0))))
_SUM = optional(DATA)
_FILTERS = (along(WEIGHT, 0), along(SCALE, 0), along(ZERO_POINT, 0))
_OF_BYTES = (*BYTES, *_FILTERS, *RESULT, *optional(along(BIAS, 0)))
_INTEGERS = (DATA, along(WEIGHT, 0), *optional(ZERO_POINT, along(ZERO_POINT, 0)))
_SPREAD = (DATA, signed(along(WEIGHT, 1)), *optional(signed(along(BIAS, 0))))
_SIZES = optional(PARAMETER, SHAPE, SHAPE)

ROWS = (
    _convolution(Op.BlockedConv, Op.Conv, *_WEIGHTS, *_SUM),
    _convolution(Op.Conv, Op.Conv, *_WEIGHTS, quantisable="yes"),
    _convolution(Op.ConvInteger, Op.ConvInteger, *_INTEGERS, quantised=True),
    _convolution(Op.ConvTranspose, Op.ConvTranspose, *_SPREAD),
    _convolution(Op.FusedConv, Op.Conv, *_WEIGHTS, *_SUM),
    _convolution(Op.MicrosoftQLinearConv, Op.Conv, *_OF_BYTES, quantised=True, on_bytes=True),
    _convolution(Op.QLinearConv, Op.Conv, *_OF_BYTES, quantised=True, on_bytes=True),
    _pool(
        *(Op.AveragePool, Op.AveragePool, "computed", DATA),
        quantisable="with_last_layer",
        count_include_pad=0,
    ),
    _pool(Op.BlockedAveragePool, Op.AveragePool, "computed", DATA, count_include_pad=0),
    _pool(Op.BlockedMaxPool, Op.MaxPool, "selected", DATA),
    _pool(Op.LpPool, Op.LpPool, "computed", DATA, p=2),
    _pool(Op.MaxPool, Op.MaxPool, "selected", DATA, quantisable="with_last_layer"),
    _pool(Op.NhwcMaxPool, Op.MaxPool, "selected", DATA, on_bytes=True, channels_last=True),
    _pool(
        *(Op.QLinearAveragePool, Op.AveragePool, "quantised", *BYTES, *RESULT),
        on_bytes=True,
        count_include_pad=0,
    ),
    _resize(Op.BlockedUpsample, Op.Upsample, DATA),
    _resize(Op.Resize, Op.Resize, DATA, *_SIZES, quantisable="with_last_layer"),
    _resize(Op.Upsample, Op.Upsample, DATA, *optional(SHAPE)),
)
