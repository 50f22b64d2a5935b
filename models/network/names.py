"""The names of operators: here and nowhere else as text.

A member is spelled as ONNX spells it. ONNX Runtime's operators have its domain in front of their value;
where ONNX has one of the same name, their member begins with ``Microsoft``, or ``Blocked`` in its layout
with channels in blocks.
"""

from enum import StrEnum
from typing import Protocol

MICROSOFT = "com.microsoft"
#: The domain of operators on tensors with channels in blocks.
NCHWC = "com.microsoft.nchwc"
#: Domains whose tensors have channels as ONNX does.
PLAIN_DOMAINS = ("", MICROSOFT)


class Op(StrEnum):
    """An operator, by its name with its domain in front where that is not ONNX's."""

    #: Bytes, and what each of them becomes, in unsigned order: neither has an operator for that.
    ByteTable = "table of bytes"
    #: One that no row is about.
    Unknown = ""

    Abs = "Abs"
    Add = "Add"
    And = "And"
    ArgMax = "ArgMax"
    ArgMin = "ArgMin"
    Attention = "Attention"
    AveragePool = "AveragePool"
    BatchNormalization = "BatchNormalization"
    Bernoulli = "Bernoulli"
    Cast = "Cast"
    CastLike = "CastLike"
    Ceil = "Ceil"
    Celu = "Celu"
    Clip = "Clip"
    Compress = "Compress"
    Concat = "Concat"
    Constant = "Constant"
    ConstantOfShape = "ConstantOfShape"
    Conv = "Conv"
    ConvInteger = "ConvInteger"
    ConvTranspose = "ConvTranspose"
    Cos = "Cos"
    CumSum = "CumSum"
    DepthToSpace = "DepthToSpace"
    DequantizeLinear = "DequantizeLinear"
    Div = "Div"
    Dropout = "Dropout"
    DynamicQuantizeLinear = "DynamicQuantizeLinear"
    Einsum = "Einsum"
    Elu = "Elu"
    Equal = "Equal"
    Erf = "Erf"
    Exp = "Exp"
    Expand = "Expand"
    EyeLike = "EyeLike"
    Flatten = "Flatten"
    Floor = "Floor"
    GRU = "GRU"
    Gather = "Gather"
    GatherElements = "GatherElements"
    GatherND = "GatherND"
    Gelu = "Gelu"
    Gemm = "Gemm"
    GlobalAveragePool = "GlobalAveragePool"
    GlobalLpPool = "GlobalLpPool"
    GlobalMaxPool = "GlobalMaxPool"
    Greater = "Greater"
    GreaterOrEqual = "GreaterOrEqual"
    GridSample = "GridSample"
    GroupNormalization = "GroupNormalization"
    HardSigmoid = "HardSigmoid"
    HardSwish = "HardSwish"
    Hardmax = "Hardmax"
    Identity = "Identity"
    If = "If"
    InstanceNormalization = "InstanceNormalization"
    IsInf = "IsInf"
    IsNaN = "IsNaN"
    LRN = "LRN"
    LSTM = "LSTM"
    LayerNormalization = "LayerNormalization"
    LeakyRelu = "LeakyRelu"
    Less = "Less"
    LessOrEqual = "LessOrEqual"
    Log = "Log"
    LogSoftmax = "LogSoftmax"
    Loop = "Loop"
    LpNormalization = "LpNormalization"
    LpPool = "LpPool"
    MatMul = "MatMul"
    MatMulInteger = "MatMulInteger"
    Max = "Max"
    MaxPool = "MaxPool"
    Mean = "Mean"
    Min = "Min"
    Mish = "Mish"
    Mod = "Mod"
    Mul = "Mul"
    Multinomial = "Multinomial"
    Neg = "Neg"
    NonMaxSuppression = "NonMaxSuppression"
    NonZero = "NonZero"
    Not = "Not"
    OneHot = "OneHot"
    Or = "Or"
    PRelu = "PRelu"
    Pad = "Pad"
    Pow = "Pow"
    QLinearConv = "QLinearConv"
    QLinearMatMul = "QLinearMatMul"
    QuantizeLinear = "QuantizeLinear"
    RMSNormalization = "RMSNormalization"
    RNN = "RNN"
    RandomNormal = "RandomNormal"
    RandomNormalLike = "RandomNormalLike"
    RandomUniform = "RandomUniform"
    RandomUniformLike = "RandomUniformLike"
    Range = "Range"
    Reciprocal = "Reciprocal"
    ReduceL1 = "ReduceL1"
    ReduceL2 = "ReduceL2"
    ReduceLogSum = "ReduceLogSum"
    ReduceLogSumExp = "ReduceLogSumExp"
    ReduceMax = "ReduceMax"
    ReduceMean = "ReduceMean"
    ReduceMin = "ReduceMin"
    ReduceProd = "ReduceProd"
    ReduceSum = "ReduceSum"
    ReduceSumSquare = "ReduceSumSquare"
    Relu = "Relu"
    Reshape = "Reshape"
    Resize = "Resize"
    RoiAlign = "RoiAlign"
    Round = "Round"
    Scan = "Scan"
    ScatterElements = "ScatterElements"
    ScatterND = "ScatterND"
    Selu = "Selu"
    Shape = "Shape"
    Shrink = "Shrink"
    Sigmoid = "Sigmoid"
    Sign = "Sign"
    Sin = "Sin"
    Size = "Size"
    Slice = "Slice"
    Softmax = "Softmax"
    Softplus = "Softplus"
    Softsign = "Softsign"
    SpaceToDepth = "SpaceToDepth"
    Split = "Split"
    Sqrt = "Sqrt"
    Squeeze = "Squeeze"
    Sub = "Sub"
    Sum = "Sum"
    Swish = "Swish"
    Tanh = "Tanh"
    ThresholdedRelu = "ThresholdedRelu"
    Tile = "Tile"
    TopK = "TopK"
    Transpose = "Transpose"
    Trilu = "Trilu"
    Unique = "Unique"
    Unsqueeze = "Unsqueeze"
    Upsample = "Upsample"
    Where = "Where"
    Xor = "Xor"

    BiasGelu = "com.microsoft.BiasGelu"
    MicrosoftDequantizeLinear = "com.microsoft.DequantizeLinear"
    DynamicQuantizeLSTM = "com.microsoft.DynamicQuantizeLSTM"
    DynamicQuantizeMatMul = "com.microsoft.DynamicQuantizeMatMul"
    FastGelu = "com.microsoft.FastGelu"
    FusedConv = "com.microsoft.FusedConv"
    FusedGemm = "com.microsoft.FusedGemm"
    FusedMatMul = "com.microsoft.FusedMatMul"
    MicrosoftGelu = "com.microsoft.Gelu"
    MatMulIntegerToFloat = "com.microsoft.MatMulIntegerToFloat"
    MatMulNBits = "com.microsoft.MatMulNBits"
    MultiHeadAttention = "com.microsoft.MultiHeadAttention"
    NhwcMaxPool = "com.microsoft.NhwcMaxPool"
    QAttention = "com.microsoft.QAttention"
    QGemm = "com.microsoft.QGemm"
    QLinearAdd = "com.microsoft.QLinearAdd"
    QLinearAveragePool = "com.microsoft.QLinearAveragePool"
    QLinearConcat = "com.microsoft.QLinearConcat"
    MicrosoftQLinearConv = "com.microsoft.QLinearConv"
    QLinearGlobalAveragePool = "com.microsoft.QLinearGlobalAveragePool"
    QLinearLeakyRelu = "com.microsoft.QLinearLeakyRelu"
    QLinearMul = "com.microsoft.QLinearMul"
    QLinearSigmoid = "com.microsoft.QLinearSigmoid"
    QLinearSoftmax = "com.microsoft.QLinearSoftmax"
    MicrosoftQuantizeLinear = "com.microsoft.QuantizeLinear"
    QuickGelu = "com.microsoft.QuickGelu"
    SkipLayerNormalization = "com.microsoft.SkipLayerNormalization"
    MicrosoftAttention = "com.microsoft.Attention"

    BlockedAveragePool = "com.microsoft.nchwc.AveragePool"
    BlockedConv = "com.microsoft.nchwc.Conv"
    BlockedGlobalAveragePool = "com.microsoft.nchwc.GlobalAveragePool"
    BlockedGlobalMaxPool = "com.microsoft.nchwc.GlobalMaxPool"
    BlockedMaxPool = "com.microsoft.nchwc.MaxPool"
    ReorderInput = "com.microsoft.nchwc.ReorderInput"
    ReorderOutput = "com.microsoft.nchwc.ReorderOutput"
    BlockedUpsample = "com.microsoft.nchwc.Upsample"

    @property
    def domain(self) -> str:
        """As a node of ONNX says it: "" of ONNX's own."""
        return self.rpartition(".")[0]

    @property
    def op_type(self) -> str:
        """Its name within its domain."""
        return self.rpartition(".")[2]


class HasOperator(Protocol):
    """A node as ONNX's messages have it: ``onnx.NodeProto``, which a server does not import."""

    domain: str
    op_type: str


def op_of(node: HasOperator) -> str:
    """Return the operator of ``node`` by the name that a member of ``Op`` has, or would have."""
    return named(node.domain, node.op_type)


def domain_of(name: str) -> str:
    """Return a domain by the one of its names that operators have here."""
    return "" if name == "ai.onnx" else name


def named(domain: str, op_type: str) -> str:
    """Return what ``op_type`` of ``domain`` is called here."""
    domain = domain_of(domain)
    return f"{domain}.{op_type}" if domain else op_type
