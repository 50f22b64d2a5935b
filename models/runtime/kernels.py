"""The kernels that ONNX Runtime has on CPUs, one row for each operator: x86, Arm and its blocked layout.

What an operator means is in the catalogue (models/network/catalogue). Without a row ONNX Runtime does not
run it as one node: it takes it apart, or cannot. A server reads this table: it imports nothing but names.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from models.network.names import Op

#: ``any``: it treats each element alike, wherever that lies; ``blocked``: channels in blocks; ``pixels``:
#: channels last.
Layout = Literal["any", "plain", "blocked", "pixels"]
#: ``joins``: it may be one of several nodes of a graph that runs in the order of that graph; ``first``:
#: ONNX Runtime runs it before nodes that stand before it. Of Casts in a row it leaves some out.
Launch = Literal["alone", "joins", "first"]
#: How what it allocates is bounded (models/compiler/cutting/scratch.py); ``measured``: no formula is known.
Scratch = Literal[
    "none",
    "average",
    "biased",
    "convolution",
    "floats",
    "input",
    "lines",
    "measured",
    "pair",
    "pooled",
    "squares",
    "sums",
    "turned",
    "unrolled",
]
#: How its numbers differ from those of another kernel that is right.
Error = Literal["same bits", "other order", "bound"]


class KernelRow(NamedTuple):
    """A kernel for ``operator``.

    ``types``: element types of its first operand that no conversion is added for. ``writes_over``: operands
    that its result may lie over, where it is as large. ``is_even``: whether bits of an element depend
    neither on how many there are nor on threads, on any processor; without a claim for 64-bit floats.
    ``is_absorbed``: whether a blocked convolution before it computes it itself.
    """

    operator: Op
    types: tuple[str, ...]
    layout: Layout
    writes_over: tuple[int, ...]
    is_even: bool
    launch: Launch
    is_absorbed: bool
    scratch: Scratch
    error: Error


FLOAT, FLOATS = ("float32",), ("float32", "float64")
BYTES, TRUTH, SIZES = ("int8", "uint8"), ("bool",), ("int64",)
QUANTISED = (*BYTES, "int32")
WIDE = (*FLOATS, "int32", "int64")
NUMERIC = (*FLOATS, *BYTES, "int32", "int64")
ALL = (*NUMERIC, *TRUTH)
SIGNED, SMALL_SIGNED = (*FLOATS, "int8", "int32", "int64"), (*FLOATS, "int8", "int32")
SMALL, IMAGES = (*FLOAT, *QUANTISED), (*FLOATS, *BYTES)
CHOSEN, INDEXED = ("float32", "uint8", "int32", "int64"), ("float32", "int32", "int64")
COUNTED, SORTED = (*CHOSEN, *TRUTH), (*FLOATS, "int8", "int64")
WIDE_OR_TRUTH = (*WIDE, *TRUTH)

#: ONNX Runtime's own layout keeps these in blocks of which zeros fill the last one: what they make of
#: numbers are numbers, and a convolution multiplies them by zero.
ON_FILLED_BLOCKS = frozenset(
    (
        *(Op.Add, Op.Gelu, Op.HardSigmoid, Op.MicrosoftGelu, Op.Mul, Op.QuickGelu, Op.Relu),
        *(Op.Sigmoid, Op.Sum, Op.Tanh),
    )
)

_ROWS: tuple[KernelRow, ...] = (
    KernelRow(Op.Abs, NUMERIC, "any", (0,), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Add, NUMERIC, "any", (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.And, TRUTH, "any", (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.ArgMax, NUMERIC, "plain", (), False, "joins", False, "none", "same bits"),
    KernelRow(Op.ArgMin, NUMERIC, "plain", (), False, "joins", False, "none", "same bits"),
    KernelRow(Op.Attention, FLOAT, "plain", (), False, "joins", False, "measured", "other order"),
    KernelRow(Op.AveragePool, FLOAT, "plain", (), False, "joins", False, "none", "other order"),
    KernelRow(Op.BatchNormalization, FLOATS, "plain", (), True, "joins", False, "none", "bound"),
    KernelRow(Op.Cast, ALL, "any", (0,), True, "alone", False, "none", "same bits"),
    KernelRow(Op.Ceil, FLOATS, "any", (0,), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Celu, FLOATS, "any", (0,), False, "joins", False, "measured", "bound"),
    KernelRow(Op.Clip, NUMERIC, "any", (0,), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Compress, ALL, "plain", (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.Concat, ALL, "plain", (), True, "joins", False, "none", "same bits"),
    KernelRow(
        Op.ConstantOfShape, SIZES, "plain", (), False, "alone", False, "measured", "same bits"
    ),
    KernelRow(Op.Conv, FLOAT, "plain", (), False, "joins", False, "none", "other order"),
    KernelRow(Op.ConvInteger, BYTES, "plain", (), False, "joins", False, "unrolled", "other order"),
    KernelRow(Op.ConvTranspose, FLOAT, "plain", (), False, "joins", False, "none", "other order"),
    KernelRow(Op.Cos, FLOATS, "any", (0,), True, "joins", False, "measured", "bound"),
    KernelRow(Op.CumSum, WIDE, "plain", (), False, "joins", False, "none", "other order"),
    KernelRow(Op.DepthToSpace, IMAGES, "plain", (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.DequantizeLinear, QUANTISED, "any", (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Div, NUMERIC, "any", (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Dropout, FLOATS, "plain", (), True, "joins", False, "measured", "same bits"),
    KernelRow(
        Op.DynamicQuantizeLinear, FLOAT, "plain", (), False, "joins", False, "none", "same bits"
    ),
    KernelRow(Op.Einsum, WIDE, "plain", (), False, "alone", False, "measured", "other order"),
    KernelRow(Op.Elu, FLOAT, "any", (0,), False, "joins", False, "none", "bound"),
    KernelRow(Op.Equal, ALL, "any", (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Erf, FLOAT, "any", (0,), True, "joins", False, "none", "bound"),
    KernelRow(Op.Exp, FLOATS, "any", (0,), True, "joins", False, "none", "bound"),
    KernelRow(Op.Expand, ALL, "plain", (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.EyeLike, WIDE, "plain", (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.Flatten, ALL, "plain", (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Floor, FLOATS, "any", (0,), True, "joins", False, "none", "same bits"),
    KernelRow(Op.GRU, FLOATS, "plain", (), False, "alone", False, "measured", "other order"),
    KernelRow(Op.Gather, ALL, "plain", (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.GatherElements, ALL, "plain", (), True, "joins", False, "measured", "same bits"),
    KernelRow(Op.GatherND, ALL, "plain", (), True, "joins", False, "measured", "same bits"),
    KernelRow(Op.Gelu, FLOAT, "any", (), True, "joins", False, "none", "bound"),
    KernelRow(Op.Gemm, FLOATS, "plain", (), False, "joins", False, "none", "other order"),
    KernelRow(
        Op.GlobalAveragePool, FLOAT, "plain", (), False, "joins", False, "none", "other order"
    ),
    KernelRow(
        Op.GlobalLpPool, FLOAT, "plain", (), False, "joins", False, "measured", "other order"
    ),
    KernelRow(Op.GlobalMaxPool, FLOAT, "plain", (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Greater, NUMERIC, "any", (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.GreaterOrEqual, NUMERIC, "any", (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.GridSample, FLOATS, "plain", (), False, "alone", False, "measured", "other order"),
    KernelRow(Op.HardSigmoid, FLOAT, "any", (0,), True, "joins", True, "none", "same bits"),
    KernelRow(Op.Hardmax, FLOAT, "plain", (), False, "joins", False, "measured", "same bits"),
    KernelRow(Op.Identity, ALL, "plain", (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.If, TRUTH, "plain", (), False, "alone", False, "measured", "same bits"),
    KernelRow(
        Op.InstanceNormalization, FLOAT, "plain", (), False, "joins", False, "none", "other order"
    ),
    KernelRow(Op.IsInf, FLOATS, "any", (), True, "joins", False, "measured", "same bits"),
    KernelRow(Op.IsNaN, FLOATS, "any", (), True, "joins", False, "measured", "same bits"),
    KernelRow(Op.LRN, FLOAT, "plain", (), False, "joins", False, "squares", "other order"),
    KernelRow(Op.LSTM, FLOATS, "plain", (), False, "alone", False, "measured", "other order"),
    KernelRow(
        Op.LayerNormalization, FLOATS, "plain", (), False, "joins", False, "none", "other order"
    ),
    KernelRow(Op.LeakyRelu, FLOAT, "any", (0,), True, "joins", True, "none", "same bits"),
    KernelRow(Op.Less, NUMERIC, "any", (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.LessOrEqual, NUMERIC, "any", (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Log, FLOATS, "any", (0,), False, "joins", False, "none", "bound"),
    KernelRow(Op.LogSoftmax, FLOATS, "plain", (), False, "joins", False, "turned", "bound"),
    KernelRow(Op.Loop, SIZES, "plain", (), False, "alone", False, "measured", "same bits"),
    KernelRow(
        Op.LpNormalization, FLOATS, "plain", (), False, "joins", False, "measured", "other order"
    ),
    KernelRow(Op.LpPool, FLOAT, "plain", (), False, "joins", False, "measured", "other order"),
    KernelRow(Op.MatMul, WIDE, "plain", (), False, "joins", False, "none", "other order"),
    KernelRow(Op.MatMulInteger, BYTES, "plain", (), False, "joins", False, "none", "other order"),
    KernelRow(Op.Max, NUMERIC, "any", (0, 1), True, "joins", False, "pair", "same bits"),
    KernelRow(Op.MaxPool, IMAGES, "plain", (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Mean, FLOAT, "any", (0, 1), True, "joins", False, "measured", "bound"),
    KernelRow(Op.Min, NUMERIC, "any", (0, 1), True, "joins", False, "pair", "same bits"),
    KernelRow(Op.Mod, NUMERIC, "any", (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Mul, NUMERIC, "any", (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Multinomial, FLOAT, "plain", (), False, "alone", False, "measured", "other order"),
    KernelRow(Op.Neg, SIGNED, "any", (0,), True, "joins", False, "none", "same bits"),
    KernelRow(
        Op.NonMaxSuppression, FLOAT, "plain", (), False, "alone", False, "measured", "same bits"
    ),
    KernelRow(Op.NonZero, COUNTED, "plain", (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.Not, TRUTH, "any", (0,), True, "joins", False, "none", "same bits"),
    KernelRow(Op.OneHot, INDEXED, "plain", (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.Or, TRUTH, "any", (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.PRelu, FLOAT, "any", (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Pad, ALL, "plain", (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Pow, WIDE, "any", (0, 1), True, "joins", False, "none", "bound"),
    KernelRow(Op.QLinearConv, BYTES, "plain", (), False, "joins", False, "measured", "other order"),
    KernelRow(Op.QLinearMatMul, BYTES, "plain", (), False, "joins", False, "sums", "other order"),
    KernelRow(Op.QuantizeLinear, FLOAT, "any", (), True, "joins", False, "none", "same bits"),
    KernelRow(
        Op.RMSNormalization, FLOATS, "plain", (), False, "joins", False, "measured", "other order"
    ),
    KernelRow(Op.RNN, FLOAT, "plain", (), False, "alone", False, "measured", "other order"),
    KernelRow(Op.RandomNormal, (), "plain", (), False, "alone", False, "measured", "other order"),
    KernelRow(
        Op.RandomNormalLike, ALL, "plain", (), False, "alone", False, "measured", "other order"
    ),
    KernelRow(Op.RandomUniform, (), "plain", (), False, "alone", False, "measured", "other order"),
    KernelRow(
        Op.RandomUniformLike, ALL, "plain", (), False, "alone", False, "measured", "other order"
    ),
    KernelRow(Op.Range, WIDE, "plain", (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.Reciprocal, FLOATS, "any", (0,), False, "joins", False, "none", "same bits"),
    KernelRow(Op.ReduceL1, WIDE, "plain", (), False, "joins", False, "none", "other order"),
    KernelRow(Op.ReduceL2, WIDE, "plain", (), False, "joins", False, "none", "other order"),
    KernelRow(Op.ReduceLogSum, WIDE, "plain", (), False, "joins", False, "measured", "other order"),
    KernelRow(
        Op.ReduceLogSumExp, WIDE, "plain", (), False, "joins", False, "measured", "other order"
    ),
    KernelRow(Op.ReduceMax, ALL, "plain", (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.ReduceMean, WIDE, "plain", (), False, "joins", False, "none", "other order"),
    KernelRow(Op.ReduceMin, ALL, "plain", (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.ReduceProd, WIDE, "plain", (), False, "joins", False, "none", "other order"),
    KernelRow(Op.ReduceSum, WIDE, "plain", (), False, "joins", False, "none", "other order"),
    KernelRow(Op.ReduceSumSquare, WIDE, "plain", (), False, "joins", False, "none", "other order"),
    KernelRow(Op.Relu, SMALL_SIGNED, "any", (0,), True, "joins", True, "none", "same bits"),
    KernelRow(Op.Reshape, ALL, "plain", (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Resize, SMALL, "plain", (), False, "joins", False, "lines", "other order"),
    KernelRow(Op.RoiAlign, FLOATS, "plain", (), False, "alone", False, "measured", "other order"),
    KernelRow(Op.Round, FLOATS, "any", (0,), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Scan, ALL, "plain", (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.ScatterElements, ALL, "plain", (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.ScatterND, ALL, "plain", (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.Selu, FLOAT, "any", (0,), False, "joins", False, "none", "bound"),
    KernelRow(Op.Shape, ALL, "plain", (), False, "first", False, "measured", "same bits"),
    KernelRow(Op.Shrink, NUMERIC, "any", (0,), True, "joins", False, "measured", "same bits"),
    KernelRow(Op.Sigmoid, FLOATS, "any", (0,), True, "joins", True, "none", "bound"),
    KernelRow(Op.Sign, NUMERIC, "any", (0,), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Sin, FLOATS, "any", (0,), True, "joins", False, "measured", "bound"),
    KernelRow(Op.Size, ALL, "plain", (), False, "first", False, "measured", "same bits"),
    KernelRow(Op.Slice, ALL, "plain", (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Softmax, FLOATS, "plain", (), False, "joins", False, "turned", "bound"),
    KernelRow(Op.Softplus, FLOAT, "any", (0,), False, "joins", False, "none", "bound"),
    KernelRow(Op.Softsign, FLOAT, "any", (0,), False, "joins", False, "none", "same bits"),
    KernelRow(Op.SpaceToDepth, IMAGES, "plain", (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Split, ALL, "plain", (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Sqrt, FLOATS, "any", (0,), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Squeeze, ALL, "plain", (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Sub, NUMERIC, "any", (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Sum, FLOATS, "any", (0, 1), True, "joins", False, "pair", "same bits"),
    KernelRow(Op.Tanh, FLOATS, "any", (0,), True, "joins", True, "none", "bound"),
    KernelRow(Op.ThresholdedRelu, FLOAT, "any", (0,), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Tile, ALL, "plain", (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.TopK, NUMERIC, "plain", (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.Transpose, ALL, "plain", (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Trilu, WIDE_OR_TRUTH, "plain", (), True, "joins", False, "measured", "same bits"),
    KernelRow(Op.Unique, SORTED, "plain", (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.Unsqueeze, ALL, "plain", (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Upsample, SMALL, "plain", (), False, "joins", False, "lines", "other order"),
    KernelRow(Op.Where, CHOSEN, "any", (1, 2), True, "joins", False, "measured", "same bits"),
    KernelRow(Op.Xor, TRUTH, "any", (0, 1), True, "joins", False, "measured", "same bits"),
    KernelRow(
        Op.MicrosoftAttention, FLOAT, "plain", (), False, "joins", False, "measured", "other order"
    ),
    KernelRow(Op.BiasGelu, FLOAT, "any", (0, 1), True, "joins", False, "biased", "bound"),
    KernelRow(
        Op.MicrosoftDequantizeLinear,
        QUANTISED,
        "any",
        (),
        True,
        "joins",
        False,
        "none",
        "same bits",
    ),
    KernelRow(
        Op.DynamicQuantizeMatMul, FLOAT, "plain", (), False, "joins", False, "input", "other order"
    ),
    KernelRow(Op.FastGelu, FLOAT, "any", (0, 1), True, "joins", False, "biased", "bound"),
    KernelRow(Op.FusedConv, FLOAT, "plain", (3,), False, "joins", False, "none", "other order"),
    KernelRow(Op.FusedGemm, FLOAT, "plain", (), False, "joins", False, "none", "other order"),
    KernelRow(Op.FusedMatMul, FLOATS, "plain", (), False, "joins", False, "none", "other order"),
    KernelRow(Op.MicrosoftGelu, FLOAT, "any", (), True, "joins", False, "none", "bound"),
    KernelRow(
        Op.MatMulIntegerToFloat, BYTES, "plain", (), False, "joins", False, "none", "other order"
    ),
    KernelRow(Op.MatMulNBits, FLOAT, "plain", (), False, "joins", False, "measured", "other order"),
    KernelRow(
        Op.MultiHeadAttention, FLOAT, "plain", (), False, "joins", False, "measured", "other order"
    ),
    KernelRow(Op.NhwcMaxPool, BYTES, "pixels", (), True, "joins", False, "pooled", "same bits"),
    KernelRow(Op.QGemm, BYTES, "plain", (), False, "joins", False, "sums", "other order"),
    KernelRow(Op.QLinearAdd, BYTES, "any", (0, 3), True, "joins", False, "none", "bound"),
    KernelRow(
        Op.QLinearAveragePool, BYTES, "plain", (), False, "joins", False, "floats", "other order"
    ),
    KernelRow(Op.QLinearConcat, BYTES, "plain", (2,), True, "joins", False, "none", "bound"),
    KernelRow(
        Op.MicrosoftQLinearConv,
        BYTES,
        "plain",
        (),
        False,
        "joins",
        False,
        "convolution",
        "other order",
    ),
    KernelRow(
        Op.QLinearGlobalAveragePool,
        BYTES,
        "plain",
        (),
        False,
        "joins",
        False,
        "average",
        "other order",
    ),
    KernelRow(Op.QLinearLeakyRelu, BYTES, "any", (0,), True, "joins", False, "none", "bound"),
    KernelRow(Op.QLinearMul, BYTES, "any", (0, 3), True, "joins", False, "none", "bound"),
    KernelRow(Op.QLinearSigmoid, BYTES, "any", (0,), True, "joins", False, "none", "bound"),
    KernelRow(
        Op.QLinearSoftmax, BYTES, "plain", (), False, "joins", False, "measured", "other order"
    ),
    KernelRow(
        Op.MicrosoftQuantizeLinear, FLOAT, "any", (), True, "joins", False, "none", "same bits"
    ),
    KernelRow(Op.QuickGelu, FLOAT, "any", (), True, "joins", False, "none", "bound"),
    KernelRow(
        Op.SkipLayerNormalization, FLOATS, "plain", (), False, "joins", False, "none", "other order"
    ),
    KernelRow(
        Op.BlockedAveragePool, FLOAT, "blocked", (), False, "joins", False, "none", "other order"
    ),
    KernelRow(Op.BlockedConv, FLOAT, "blocked", (3,), False, "joins", False, "none", "other order"),
    KernelRow(
        Op.BlockedGlobalAveragePool,
        FLOAT,
        "blocked",
        (),
        False,
        "joins",
        False,
        "none",
        "other order",
    ),
    KernelRow(
        Op.BlockedGlobalMaxPool, FLOAT, "blocked", (), True, "joins", False, "none", "same bits"
    ),
    KernelRow(Op.BlockedMaxPool, FLOAT, "blocked", (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.ReorderInput, FLOAT, "blocked", (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.ReorderOutput, FLOAT, "blocked", (), True, "joins", False, "none", "same bits"),
    KernelRow(
        Op.BlockedUpsample, FLOAT, "blocked", (), False, "joins", False, "none", "other order"
    ),
)
KERNELS: Mapping[str, KernelRow] = {row.operator: row for row in _ROWS}


def kernel_of(operator: str) -> KernelRow | None:
    """Return the row of ``operator``, named as ``Op`` and ``op_of`` do; None: there is no such kernel."""
    return KERNELS.get(operator)
