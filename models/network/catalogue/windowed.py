"""Operators that make each element of a window: convolutions, pools, resizing."""

from collections.abc import Mapping
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
    Versions,
    along,
    record,
    signed,
    sizing,
)

_WINDOWS = {"auto_pad": "NOTSET"}


def _convolution(
    name: Op,
    versions: Versions,
    of: Op,
    read: Reader | None,
    *operands: OperandRecord,
    quantised: bool = False,
    attributes: Mapping[str, Any] = _WINDOWS | {"group": 1},
    **traits: Any,
) -> OperatorRecord:
    return record(
        name,
        versions,
        operands,
        "windowed",
        "quantised" if quantised else "computed",
        of=of,
        read=read,
        attributes=attributes,
        layer=True,
        **traits,
    )


def _pool(
    name: Op,
    versions: Versions,
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
        versions,
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


def _resize(
    name: Op, versions: Versions, of: Op, *operands: OperandRecord, **traits: Any
) -> OperatorRecord:
    traits = {**traits, "attributes": {"mode": "nearest"}}
    return record(name, versions, operands, "resampling", "computed", of=of, read=resize, **traits)


_WEIGHTS = (DATA, signed(along(WEIGHT, 0)), signed(along(BIAS, 0)))
_SUM = (DATA,)
_FILTERS = (along(WEIGHT, 0), along(SCALE, 0), along(ZERO_POINT, 0))
_OF_BYTES = (*BYTES, *_FILTERS, *RESULT, along(BIAS, 0))
_INTEGERS = (DATA, along(WEIGHT, 0), ZERO_POINT, along(ZERO_POINT, 0))
_SPREAD = (DATA, signed(along(WEIGHT, 1)), signed(along(BIAS, 0)))
#: The part that is resized, factors, sizes.
_SIZES = (sizing(PARAMETER), sizing(SHAPE), sizing(SHAPE))

_CONV = _convolution(Op.Conv, (1, 11, 22), Op.Conv, convolution, *_WEIGHTS, quantisable="yes")
_ON_BYTES: Any = {"quantised": True, "on_bytes": True}
_MEANS = _pool(
    *(Op.AveragePool, (7, 10, 11, 19, 22), Op.AveragePool, pool("mean"), "computed", DATA),
    quantisable="with_last_layer",
    count_include_pad=0,
)
_LARGEST = _pool(
    *(Op.MaxPool, (1, 8, 10, 11, 12, 22), Op.MaxPool, max_pool, "selected", DATA),
    quantisable="with_last_layer",
)

ROWS = (
    _CONV,
    _MEANS,
    _LARGEST,
    _convolution(Op.BlockedConv, (1,), Op.Conv, with_activation(convolution), *_WEIGHTS, *_SUM),
    _convolution(Op.ConvInteger, (10,), Op.ConvInteger, None, *_INTEGERS, quantised=True),
    _convolution(Op.ConvTranspose, (1, 11, 22), Op.ConvTranspose, transposed_convolution, *_SPREAD),
    _convolution(Op.FusedConv, (1,), Op.Conv, with_activation(convolution), *_WEIGHTS, *_SUM),
    _convolution(Op.MicrosoftQLinearConv, (1,), Op.Conv, on_bytes(_CONV), *_OF_BYTES, **_ON_BYTES),
    _convolution(Op.QLinearConv, (10,), Op.Conv, on_bytes(_CONV), *_OF_BYTES, **_ON_BYTES),
    _pool(
        Op.BlockedAveragePool,
        (1,),
        Op.AveragePool,
        pool("mean"),
        "computed",
        DATA,
        count_include_pad=0,
    ),
    _pool(Op.BlockedMaxPool, (1,), Op.MaxPool, pool("largest"), "selected", DATA),
    _pool(Op.LpPool, (2, 11, 18, 22), Op.LpPool, None, "computed", DATA, p=2),
    _pool(
        *(Op.NhwcMaxPool, (1,), Op.MaxPool, max_pool, "selected", DATA),
        on_bytes=True,
        channels_last=True,
    ),
    _pool(
        *(
            Op.QLinearAveragePool,
            (1,),
            Op.AveragePool,
            on_bytes(_MEANS),
            "quantised",
            *BYTES,
            *RESULT,
        ),
        on_bytes=True,
        count_include_pad=0,
    ),
    _resize(Op.BlockedUpsample, (1,), Op.Upsample, DATA),
    _resize(
        Op.Resize, (10, 11, 13, 18, 19), Op.Resize, DATA, *_SIZES, quantisable="with_last_layer"
    ),
    _resize(Op.Upsample, (7, 9), Op.Upsample, DATA, sizing(SHAPE)),
)
