"""The kernels that ONNX Runtime has on CPUs, one row for each operator: x86, Arm and its blocked layout.

What an operator means is in the catalogue (models/network/catalogue). Without a row ONNX Runtime does not
run it as one node: it takes it apart, or cannot. A server reads this table: it imports nothing but names.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from models.network.names import Op

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

    ``writes_over``: operands that its result may lie over, where it is as large. ``is_even``: whether bits
    of an element depend neither on how many there are nor on threads, on any processor; without a claim for
    64-bit floats. ``is_absorbed``: whether a blocked convolution before it computes it itself.
    """

    operator: Op
    writes_over: tuple[int, ...]
    is_even: bool
    launch: Launch
    is_absorbed: bool
    scratch: Scratch
    error: Error


#: These run on blocks of which zeros fill the last one: what they make of numbers are numbers, and a
#: convolution multiplies them by zero.
ON_FILLED_BLOCKS = frozenset(
    (
        *(Op.Abs, Op.Add, Op.Clip, Op.Elu, Op.Erf, Op.Gelu, Op.HardSigmoid, Op.HardSwish),
        *(Op.LeakyRelu, Op.MicrosoftGelu, Op.Mul, Op.Neg, Op.QuickGelu, Op.Relu, Op.Sigmoid),
        *(Op.Softplus, Op.Sub, Op.Sum, Op.Tanh),
    )
)

_ROWS: tuple[KernelRow, ...] = (
    KernelRow(Op.Abs, (0,), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Add, (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.And, (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.ArgMax, (), False, "joins", False, "none", "same bits"),
    KernelRow(Op.ArgMin, (), False, "joins", False, "none", "same bits"),
    KernelRow(Op.Attention, (), False, "joins", False, "measured", "other order"),
    KernelRow(Op.AveragePool, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.BatchNormalization, (), True, "joins", False, "none", "bound"),
    KernelRow(Op.Cast, (0,), True, "alone", False, "none", "same bits"),
    KernelRow(Op.Ceil, (0,), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Celu, (0,), False, "joins", False, "measured", "bound"),
    KernelRow(Op.Clip, (0,), True, "joins", True, "none", "same bits"),
    KernelRow(Op.Compress, (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.Concat, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.ConstantOfShape, (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.Conv, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.ConvInteger, (), False, "joins", False, "unrolled", "other order"),
    KernelRow(Op.ConvTranspose, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.Cos, (0,), True, "joins", False, "measured", "bound"),
    KernelRow(Op.CumSum, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.DepthToSpace, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.DequantizeLinear, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Div, (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Dropout, (), True, "joins", False, "measured", "same bits"),
    KernelRow(Op.DynamicQuantizeLinear, (), False, "joins", False, "none", "same bits"),
    KernelRow(Op.Einsum, (), False, "alone", False, "measured", "other order"),
    KernelRow(Op.Elu, (0,), False, "joins", False, "none", "bound"),
    KernelRow(Op.Equal, (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Erf, (0,), True, "joins", False, "none", "bound"),
    KernelRow(Op.Exp, (0,), True, "joins", False, "none", "bound"),
    KernelRow(Op.Expand, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.EyeLike, (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.Flatten, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Floor, (0,), True, "joins", False, "none", "same bits"),
    KernelRow(Op.GRU, (), False, "alone", False, "measured", "other order"),
    KernelRow(Op.Gather, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.GatherElements, (), True, "joins", False, "measured", "same bits"),
    KernelRow(Op.GatherND, (), True, "joins", False, "measured", "same bits"),
    KernelRow(Op.Gelu, (), True, "joins", False, "none", "bound"),
    KernelRow(Op.Gemm, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.GlobalAveragePool, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.GlobalLpPool, (), False, "joins", False, "measured", "other order"),
    KernelRow(Op.GlobalMaxPool, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Greater, (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.GreaterOrEqual, (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.GridSample, (), False, "alone", False, "measured", "other order"),
    KernelRow(Op.HardSigmoid, (0,), True, "joins", True, "none", "same bits"),
    KernelRow(Op.Hardmax, (), False, "joins", False, "measured", "same bits"),
    KernelRow(Op.Identity, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.If, (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.InstanceNormalization, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.IsInf, (), True, "joins", False, "measured", "same bits"),
    KernelRow(Op.IsNaN, (), True, "joins", False, "measured", "same bits"),
    KernelRow(Op.LRN, (), False, "joins", False, "squares", "other order"),
    KernelRow(Op.LSTM, (), False, "alone", False, "measured", "other order"),
    KernelRow(Op.LayerNormalization, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.LeakyRelu, (0,), True, "joins", True, "none", "same bits"),
    KernelRow(Op.Less, (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.LessOrEqual, (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Log, (0,), False, "joins", False, "none", "bound"),
    KernelRow(Op.LogSoftmax, (), False, "joins", False, "turned", "bound"),
    KernelRow(Op.Loop, (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.LpNormalization, (), False, "joins", False, "measured", "other order"),
    KernelRow(Op.LpPool, (), False, "joins", False, "measured", "other order"),
    KernelRow(Op.MatMul, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.MatMulInteger, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.Max, (0, 1), True, "joins", False, "pair", "same bits"),
    KernelRow(Op.MaxPool, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Mean, (0, 1), True, "joins", False, "measured", "bound"),
    KernelRow(Op.Min, (0, 1), True, "joins", False, "pair", "same bits"),
    KernelRow(Op.Mod, (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Mul, (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Multinomial, (), False, "alone", False, "measured", "other order"),
    KernelRow(Op.Neg, (0,), True, "joins", False, "none", "same bits"),
    KernelRow(Op.NonMaxSuppression, (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.NonZero, (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.Not, (0,), True, "joins", False, "none", "same bits"),
    KernelRow(Op.OneHot, (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.Or, (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.PRelu, (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Pad, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Pow, (0, 1), True, "joins", False, "none", "bound"),
    KernelRow(Op.QLinearConv, (), False, "joins", False, "measured", "other order"),
    KernelRow(Op.QLinearMatMul, (), False, "joins", False, "sums", "other order"),
    KernelRow(Op.QuantizeLinear, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.RMSNormalization, (), False, "joins", False, "measured", "other order"),
    KernelRow(Op.RNN, (), False, "alone", False, "measured", "other order"),
    KernelRow(Op.RandomNormal, (), False, "alone", False, "measured", "other order"),
    KernelRow(Op.RandomNormalLike, (), False, "alone", False, "measured", "other order"),
    KernelRow(Op.RandomUniform, (), False, "alone", False, "measured", "other order"),
    KernelRow(Op.RandomUniformLike, (), False, "alone", False, "measured", "other order"),
    KernelRow(Op.Range, (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.Reciprocal, (0,), False, "joins", False, "none", "same bits"),
    KernelRow(Op.ReduceL1, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.ReduceL2, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.ReduceLogSum, (), False, "joins", False, "measured", "other order"),
    KernelRow(Op.ReduceLogSumExp, (), False, "joins", False, "measured", "other order"),
    KernelRow(Op.ReduceMax, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.ReduceMean, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.ReduceMin, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.ReduceProd, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.ReduceSum, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.ReduceSumSquare, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.Relu, (0,), True, "joins", True, "none", "same bits"),
    KernelRow(Op.Reshape, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Resize, (), False, "joins", False, "lines", "other order"),
    KernelRow(Op.RoiAlign, (), False, "alone", False, "measured", "other order"),
    KernelRow(Op.Round, (0,), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Scan, (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.ScatterElements, (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.ScatterND, (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.Selu, (0,), False, "joins", False, "none", "bound"),
    KernelRow(Op.Shape, (), False, "first", False, "measured", "same bits"),
    KernelRow(Op.Shrink, (0,), True, "joins", False, "measured", "same bits"),
    KernelRow(Op.Sigmoid, (0,), True, "joins", True, "none", "bound"),
    KernelRow(Op.Sign, (0,), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Sin, (0,), True, "joins", False, "measured", "bound"),
    KernelRow(Op.Size, (), False, "first", False, "measured", "same bits"),
    KernelRow(Op.Slice, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Softmax, (), False, "joins", False, "turned", "bound"),
    KernelRow(Op.Softplus, (0,), False, "joins", False, "none", "bound"),
    KernelRow(Op.Softsign, (0,), False, "joins", False, "none", "same bits"),
    KernelRow(Op.SpaceToDepth, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Split, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Sqrt, (0,), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Squeeze, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Sub, (0, 1), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Sum, (0, 1), True, "joins", False, "pair", "same bits"),
    KernelRow(Op.Tanh, (0,), True, "joins", True, "none", "bound"),
    KernelRow(Op.ThresholdedRelu, (0,), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Tile, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.TopK, (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.Transpose, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Trilu, (), True, "joins", False, "measured", "same bits"),
    KernelRow(Op.Unique, (), False, "alone", False, "measured", "same bits"),
    KernelRow(Op.Unsqueeze, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.Upsample, (), False, "joins", False, "lines", "other order"),
    KernelRow(Op.Where, (1, 2), True, "joins", False, "measured", "same bits"),
    KernelRow(Op.Xor, (0, 1), True, "joins", False, "measured", "same bits"),
    KernelRow(Op.MicrosoftAttention, (), False, "joins", False, "measured", "other order"),
    KernelRow(Op.BiasGelu, (0, 1), True, "joins", False, "biased", "bound"),
    KernelRow(Op.MicrosoftDequantizeLinear, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.DynamicQuantizeLSTM, (), False, "alone", False, "measured", "other order"),
    KernelRow(Op.DynamicQuantizeMatMul, (), False, "joins", False, "input", "other order"),
    KernelRow(Op.FastGelu, (0, 1), True, "joins", False, "biased", "bound"),
    KernelRow(Op.FusedConv, (3,), False, "joins", False, "none", "other order"),
    KernelRow(Op.FusedGemm, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.FusedMatMul, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.MicrosoftGelu, (), True, "joins", False, "none", "bound"),
    KernelRow(Op.MatMulIntegerToFloat, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.MatMulNBits, (), False, "joins", False, "measured", "other order"),
    KernelRow(Op.MultiHeadAttention, (0,), False, "joins", False, "measured", "other order"),
    KernelRow(Op.NhwcMaxPool, (), True, "joins", False, "pooled", "same bits"),
    KernelRow(Op.QAttention, (), False, "alone", False, "measured", "other order"),
    KernelRow(Op.QGemm, (), False, "joins", False, "sums", "other order"),
    KernelRow(Op.QLinearAdd, (0, 3), True, "joins", False, "none", "bound"),
    KernelRow(Op.QLinearAveragePool, (), False, "joins", False, "floats", "other order"),
    KernelRow(Op.QLinearConcat, (2,), True, "joins", False, "none", "bound"),
    KernelRow(Op.MicrosoftQLinearConv, (), False, "joins", False, "convolution", "other order"),
    KernelRow(Op.QLinearGlobalAveragePool, (), False, "joins", False, "average", "other order"),
    KernelRow(Op.QLinearLeakyRelu, (0,), True, "joins", False, "none", "bound"),
    KernelRow(Op.QLinearMul, (0, 3), True, "joins", False, "none", "bound"),
    KernelRow(Op.QLinearSigmoid, (0,), True, "joins", False, "none", "bound"),
    KernelRow(Op.QLinearSoftmax, (), False, "joins", False, "measured", "other order"),
    KernelRow(Op.MicrosoftQuantizeLinear, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.QuickGelu, (), True, "joins", False, "none", "bound"),
    KernelRow(Op.SkipLayerNormalization, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.BlockedAveragePool, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.BlockedConv, (3,), False, "joins", False, "none", "other order"),
    KernelRow(Op.BlockedGlobalAveragePool, (), False, "joins", False, "none", "other order"),
    KernelRow(Op.BlockedGlobalMaxPool, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.BlockedMaxPool, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.ReorderInput, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.ReorderOutput, (), True, "joins", False, "none", "same bits"),
    KernelRow(Op.BlockedUpsample, (), False, "joins", False, "none", "other order"),
)
KERNELS: Mapping[str, KernelRow] = {row.operator: row for row in _ROWS}

#: The newest versions of ONNX that ONNX Runtime 1.31 takes; it refuses others by their number alone. What
#: operators of newer ones mean is described (models/network/records.py), since later releases run them.
NEWEST_IR, NEWEST_OPSET = 13, 26
#: From which operator set on ONNX Runtime has no kernel of an operator, or of what ONNX defines it by.
#: It means what it did: its version, or that of what it is defined by, takes more element types.
WITHOUT_KERNEL: Mapping[str, int] = {
    Op.Bernoulli: 22,
    Op.DequantizeLinear: 28,
    Op.GlobalLpPool: 22,
    Op.Multinomial: 22,
    Op.QuantizeLinear: 28,
    Op.RandomNormal: 22,
    Op.RandomNormalLike: 22,
    Op.RandomUniform: 22,
    Op.RandomUniformLike: 22,
    Op.RoiAlign: 22,
    Op.Swish: 25,
}


def kernel_of(operator: str) -> KernelRow | None:
    """Return the row of ``operator``, named as ``Op`` and ``op_of`` do; None: there is no such kernel."""
    return KERNELS.get(operator)
