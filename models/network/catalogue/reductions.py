"""Operators whose results are made of whole axes: means, norms, softmaxes, sums along an axis."""

from typing import Any

from models.network.names import Op
from models.network.operators.normalisation import (
    group_norm,
    instance_norm,
    layer_norm,
    response_norm,
    softmax,
)
from models.network.operators.on_bytes import on_bytes
from models.network.operators.pooling import Reduced, over_axes, over_planes
from models.network.records import (
    BIAS,
    BYTES,
    DATA,
    RESULT,
    SHAPE,
    WEIGHT,
    Elements,
    Limited,
    OperandRecord,
    OperatorRecord,
    Reader,
    Versions,
    record,
)


def _reduction(
    name: Op,
    versions: Versions,
    elements: Elements,
    *operands: OperandRecord,
    of: Op | None = None,
    **traits: Any,
) -> OperatorRecord:
    return record(name, versions, operands, "reduction", elements, of=of, **traits)


def _over_axes(
    name: Op, versions: Versions, kind: Reduced | None, elements: Elements = "computed"
) -> OperatorRecord:
    """One of the operators Reduce..."""
    return record(
        *(name, versions, (DATA, SHAPE), "reduction", elements),
        attributes={"keepdims": 1, "noop_with_empty_axes": 0},
        read=over_axes(kind) if kind else None,
    )


def _norm(
    name: Op,
    versions: Versions,
    read: Reader | None,
    *parameters: OperandRecord,
    **attributes: Any,
) -> OperatorRecord:
    return record(
        *(name, versions, (DATA, *parameters), "reduction", "computed"),
        attributes={"epsilon": 1e-5, **attributes},
        read=read,
    )


def _along_axis(
    name: Op,
    versions: Versions,
    read: Reader | None = None,
    jumps: bool = False,
    limited: Limited = "none",
    **attributes: Any,
) -> OperatorRecord:
    return record(
        *(name, versions, (DATA,), "reduction", "computed"),
        attributes={"axis": -1, **attributes},
        read=read,
        jumps=jumps,
        limited=limited,
    )


_MEANS = _reduction(
    *(Op.GlobalAveragePool, (1, 22), "computed", DATA),
    read=over_planes("mean"),
    quantisable="with_last_layer",
)
_SOFTMAX = _along_axis(Op.Softmax, (1, 11, 13), softmax(logarithm=False), limited="all")

ROWS = (
    _reduction(
        Op.BlockedGlobalAveragePool,
        (1,),
        "computed",
        DATA,
        of=Op.GlobalAveragePool,
        read=over_planes("mean"),
    ),
    _reduction(
        Op.BlockedGlobalMaxPool,
        (1,),
        "selected",
        DATA,
        of=Op.GlobalMaxPool,
        read=over_planes("largest"),
    ),
    _MEANS,
    _reduction(Op.GlobalLpPool, (2, 22), "computed", DATA, attributes={"p": 2}),
    _reduction(Op.GlobalMaxPool, (1, 22), "selected", DATA, read=over_planes("largest")),
    _reduction(
        *(Op.QLinearGlobalAveragePool, (1,), "quantised", *BYTES, *RESULT),
        of=Op.GlobalAveragePool,
        read=on_bytes(_MEANS),
        attributes={"channels_last": 0},
        on_bytes=True,
    ),
    _over_axes(Op.ReduceL1, (1, 11, 13, 18), "magnitudes"),
    _over_axes(Op.ReduceL2, (1, 11, 13, 18), "root_of_squares"),
    _over_axes(Op.ReduceLogSum, (1, 11, 13, 18, 28), None),
    _over_axes(Op.ReduceLogSumExp, (1, 11, 13, 18, 28), None),
    _over_axes(Op.ReduceMax, (1, 11, 12, 13, 18, 20), "largest", "selected"),
    _over_axes(Op.ReduceMean, (1, 11, 13, 18), "mean"),
    _over_axes(Op.ReduceMin, (1, 11, 12, 13, 18, 20), "smallest", "selected"),
    _over_axes(Op.ReduceProd, (1, 11, 13, 18), "product"),
    _over_axes(Op.ReduceSum, (1, 11, 13), "sum"),
    _over_axes(Op.ReduceSumSquare, (1, 11, 13, 18), "squares"),
    _norm(Op.GroupNormalization, (21,), group_norm, WEIGHT, BIAS),
    _norm(Op.InstanceNormalization, (6, 22), instance_norm, WEIGHT, BIAS),
    _norm(Op.LayerNormalization, (1, 17), layer_norm, WEIGHT, BIAS, axis=-1),
    _norm(Op.RMSNormalization, (23,), None, WEIGHT, axis=-1),
    _norm(Op.SkipLayerNormalization, (1,), None, DATA, WEIGHT, BIAS, BIAS),
    _reduction(
        Op.LRN,
        (1, 13),
        "computed",
        DATA,
        read=response_norm,
        attributes={"alpha": 1e-4, "beta": 0.75, "bias": 1.0},
    ),
    _along_axis(Op.ArgMax, (1, 11, 12, 13), jumps=True, limited="all", axis=0, keepdims=1),
    _along_axis(Op.ArgMin, (1, 11, 12, 13), jumps=True, limited="all", axis=0, keepdims=1),
    _along_axis(Op.Hardmax, (1, 11, 13), jumps=True, limited="all"),
    _along_axis(Op.LogSoftmax, (1, 11, 13), softmax(logarithm=True)),
    _along_axis(Op.LpNormalization, (1, 22), p=2),
    record(
        *(Op.QLinearSoftmax, (1,), (*BYTES, *RESULT), "reduction", "quantised"),
        of=Op.Softmax,
        read=on_bytes(_SOFTMAX),
        on_bytes=True,
    ),
    _SOFTMAX,
    _reduction(
        Op.CumSum, (11, 14), "computed", DATA, SHAPE, attributes={"exclusive": 0, "reverse": 0}
    ),
    _reduction(Op.DynamicQuantizeLinear, (11,), "quantised", DATA, jumps=True),
)
