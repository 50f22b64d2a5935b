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
    OperandRecord,
    OperatorRecord,
    Reader,
    optional,
    record,
)


def _reduction(
    name: Op, elements: Elements, *operands: OperandRecord, of: Op | None = None, **traits: Any
) -> OperatorRecord:
    return record(name, operands, "reduction", elements, of=of, **traits)


def _over_axes(name: Op, kind: Reduced | None, elements: Elements = "computed") -> OperatorRecord:
    """One of the operators Reduce..."""
    return record(
        *(name, (DATA, *optional(SHAPE)), "reduction", elements),
        attributes={"keepdims": 1, "noop_with_empty_axes": 0},
        read=over_axes(kind) if kind else None,
    )


def _norm(
    name: Op, read: Reader | None, *parameters: OperandRecord, **attributes: Any
) -> OperatorRecord:
    return record(
        *(name, (DATA, *parameters), "reduction", "computed"),
        attributes={"epsilon": 1e-5, **attributes},
        read=read,
    )


def _along_axis(name: Op, elements: Elements, **traits: Any) -> OperatorRecord:
    return record(name, (DATA,), "reduction", elements, attributes={"axis": -1}, **traits)


_MEANS = _reduction(
    *(Op.GlobalAveragePool, "computed", DATA),
    read=over_planes("mean"),
    quantisable="with_last_layer",
)
_SOFTMAX = _along_axis(Op.Softmax, "computed", read=softmax(logarithm=False))

ROWS = (
    _reduction(
        Op.BlockedGlobalAveragePool,
        "computed",
        DATA,
        of=Op.GlobalAveragePool,
        read=over_planes("mean"),
    ),
    _reduction(
        Op.BlockedGlobalMaxPool, "selected", DATA, of=Op.GlobalMaxPool, read=over_planes("largest")
    ),
    _MEANS,
    _reduction(Op.GlobalLpPool, "computed", DATA, attributes={"p": 2}),
    _reduction(Op.GlobalMaxPool, "selected", DATA, read=over_planes("largest")),
    _reduction(
        *(Op.QLinearGlobalAveragePool, "quantised", *BYTES, *RESULT),
        of=Op.GlobalAveragePool,
        read=on_bytes(_MEANS),
        attributes={"channels_last": 0},
        on_bytes=True,
    ),
    _over_axes(Op.ReduceL1, "magnitudes"),
    _over_axes(Op.ReduceL2, "root_of_squares"),
    _over_axes(Op.ReduceLogSum, None),
    _over_axes(Op.ReduceLogSumExp, None),
    _over_axes(Op.ReduceMax, "largest", "selected"),
    _over_axes(Op.ReduceMean, "mean"),
    _over_axes(Op.ReduceMin, "smallest", "selected"),
    _over_axes(Op.ReduceProd, "product"),
    _over_axes(Op.ReduceSum, "sum"),
    _over_axes(Op.ReduceSumSquare, "squares"),
    _norm(Op.GroupNormalization, group_norm, WEIGHT, BIAS),
    _norm(Op.InstanceNormalization, instance_norm, WEIGHT, BIAS),
    _norm(Op.LayerNormalization, layer_norm, WEIGHT, *optional(BIAS), axis=-1),
    _norm(Op.RMSNormalization, None, WEIGHT, axis=-1),
    _norm(Op.SkipLayerNormalization, None, DATA, WEIGHT, *optional(BIAS, BIAS)),
    _reduction(
        Op.LRN,
        "computed",
        DATA,
        read=response_norm,
        attributes={"alpha": 1e-4, "beta": 0.75, "bias": 1.0},
    ),
    _along_axis(Op.Hardmax, "computed", jumps=True),
    _along_axis(Op.LogSoftmax, "computed", read=softmax(logarithm=True)),
    record(Op.LpNormalization, (DATA,), "reduction", "computed", attributes={"axis": -1, "p": 2}),
    record(
        *(Op.QLinearSoftmax, (*BYTES, *RESULT), "reduction", "quantised"),
        of=Op.Softmax,
        read=on_bytes(_SOFTMAX),
        on_bytes=True,
    ),
    _SOFTMAX,
    _reduction(Op.ArgMax, "computed", DATA, attributes={"axis": 0, "keepdims": 1}, jumps=True),
    _reduction(Op.ArgMin, "computed", DATA, attributes={"axis": 0, "keepdims": 1}, jumps=True),
    _reduction(Op.CumSum, "computed", DATA, SHAPE, attributes={"exclusive": 0, "reverse": 0}),
    _reduction(Op.DynamicQuantizeLinear, "quantised", DATA, jumps=True),
)
