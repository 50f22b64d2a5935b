"""Operators whose results are made of whole axes: means, norms, softmaxes, sums along an axis."""

from typing import Any

from models.network.catalogue.records import (
    BIAS,
    BYTES,
    DATA,
    RESULT,
    SHAPE,
    WEIGHT,
    Elements,
    OperandRecord,
    OperatorRecord,
    optional,
    record,
)
from models.network.names import Op


def _reduction(
    name: Op, elements: Elements, *operands: OperandRecord, of: Op | None = None, **traits: Any
) -> OperatorRecord:
    return record(name, operands, "reduction", elements, of=of, **traits)


def _over_axes(name: Op, elements: Elements = "computed") -> OperatorRecord:
    """One of the operators Reduce..."""
    attributes = {"keepdims": 1, "noop_with_empty_axes": 0}
    return record(name, (DATA, *optional(SHAPE)), "reduction", elements, attributes=attributes)


def _norm(name: Op, *parameters: OperandRecord, **attributes: Any) -> OperatorRecord:
    attributes = {"epsilon": 1e-5, **attributes}
    return record(name, (DATA, *parameters), "reduction", "computed", attributes=attributes)


def _along_axis(name: Op, elements: Elements, **traits: Any) -> OperatorRecord:
    return record(name, (DATA,), "reduction", elements, attributes={"axis": -1}, **traits)


ROWS = (
    _reduction(Op.BlockedGlobalAveragePool, "computed", DATA, of=Op.GlobalAveragePool),
    _reduction(Op.BlockedGlobalMaxPool, "selected", DATA, of=Op.GlobalMaxPool),
    _reduction(Op.GlobalAveragePool, "computed", DATA, quantisable="with_last_layer"),
    _reduction(Op.GlobalLpPool, "computed", DATA, attributes={"p": 2}),
    _reduction(Op.GlobalMaxPool, "selected", DATA),
    _reduction(
        *(Op.QLinearGlobalAveragePool, "quantised", *BYTES, *RESULT),
        of=Op.GlobalAveragePool,
        attributes={"channels_last": 0},
        on_bytes=True,
    ),
    _over_axes(Op.ReduceL1),
    _over_axes(Op.ReduceL2),
    _over_axes(Op.ReduceLogSum),
    _over_axes(Op.ReduceLogSumExp),
    _over_axes(Op.ReduceMax, "selected"),
    _over_axes(Op.ReduceMean),
    _over_axes(Op.ReduceMin, "selected"),
    _over_axes(Op.ReduceProd),
    _over_axes(Op.ReduceSum),
    _over_axes(Op.ReduceSumSquare),
    _norm(Op.GroupNormalization, WEIGHT, BIAS),
    _norm(Op.InstanceNormalization, WEIGHT, BIAS),
    _norm(Op.LayerNormalization, WEIGHT, *optional(BIAS), axis=-1),
    _norm(Op.RMSNormalization, WEIGHT, axis=-1),
    _norm(Op.SkipLayerNormalization, DATA, WEIGHT, *optional(BIAS, BIAS)),
    _reduction(Op.LRN, "computed", DATA, attributes={"alpha": 1e-4, "beta": 0.75, "bias": 1.0}),
    _along_axis(Op.Hardmax, "computed", jumps=True),
    _along_axis(Op.LogSoftmax, "computed"),
    record(Op.LpNormalization, (DATA,), "reduction", "computed", attributes={"axis": -1, "p": 2}),
    record(
        *(Op.QLinearSoftmax, (*BYTES, *RESULT), "reduction", "quantised"),
        of=Op.Softmax,
        on_bytes=True,
    ),
    _along_axis(Op.Softmax, "computed"),
    _reduction(Op.ArgMax, "computed", DATA, attributes={"axis": 0, "keepdims": 1}, jumps=True),
    _reduction(Op.ArgMin, "computed", DATA, attributes={"axis": 0, "keepdims": 1}, jumps=True),
    _reduction(Op.CumSum, "computed", DATA, SHAPE, attributes={"exclusive": 0, "reverse": 0}),
    _reduction(Op.DynamicQuantizeLinear, "quantised", DATA, jumps=True),
)
