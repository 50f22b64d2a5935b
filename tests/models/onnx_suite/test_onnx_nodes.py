"""Every operator that a CNN uses, streamed: the answers of the onnx package's own node tests.

Where plain ONNX Runtime does not give the expected answer (``LEFT_OUT``, ``RANDOM`` and ``ALIKE`` say why),
a pack does what plain ONNX Runtime does; a later ONNX Runtime may do more.
"""

import importlib
import pkgutil
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.backend.test.case import node
from onnx.backend.test.case.test_case import TestCase

from models.compiler import CompileOptions
from models.errors import ModelError
from models.runtime.sessions import open_session, session_options
from pipeline.devices.base import KernelError
from tests.models.streamed import compiled, same, streamed

OPERATORS = """
    Conv ConvTranspose ConvInteger DeformConv QLinearConv AveragePool MaxPool LpPool
    GlobalAveragePool GlobalMaxPool MaxUnpool RoiAlign BatchNormalization InstanceNormalization
    GroupNormalization LayerNormalization LRN LpNormalization MeanVarianceNormalization
    RMSNormalization Relu LeakyRelu PRelu Elu Selu Celu ThresholdedRelu Sigmoid HardSigmoid
    HardSwish Swish Mish Gelu Tanh Softplus Softsign Shrink Clip Softmax LogSoftmax Hardmax Add
    Sub Mul Div Pow Mod Neg Abs Sqrt Reciprocal Exp Log Erf Floor Ceil Round Sign Sin Cos Tan
    Sinh Cosh Asin Acos Atan Asinh Acosh Atanh Max Min Mean Sum And Or Xor Not Equal Greater
    GreaterOrEqual Less LessOrEqual Where IsInf IsNaN BitShift BitwiseAnd BitwiseOr BitwiseXor
    BitwiseNot ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2
    ReduceLogSum ReduceLogSumExp ReduceSumSquare ArgMax ArgMin TopK CumSum Gemm MatMul
    MatMulInteger QLinearMatMul Einsum Det QuantizeLinear DequantizeLinear DynamicQuantizeLinear
    Cast Reshape Flatten Squeeze Unsqueeze Transpose Identity Dropout Shape Size Constant
    ConstantOfShape Range Expand Tile Concat Split Slice Pad Gather GatherElements GatherND
    ScatterElements ScatterND Scatter Compress OneHot EyeLike Trilu NonZero Unique
    ReverseSequence CenterCropPad Col2Im DepthToSpace SpaceToDepth Resize Upsample GridSample
    AffineGrid NonMaxSuppression If Loop Scan LSTM GRU RNN StringConcat
    StringSplit RegexFullMatch LabelEncoder TfIdfVectorizer
""".split()  # noqa: SIM905  a page of quotes says less

#: Those of ``OPERATORS`` that ONNX Runtime alone computes, and of which the compiler needs nothing that it
#: does not ask of others: of Cos nothing that it does not of Sin. Only the slow tests have cases of them.
#: Of pools onnx takes seconds to compute all its cases; many networks of ours have some.
ALIKE = frozenset(
    """
    Cos Tan Sinh Cosh Asin Acos Atan Asinh Acosh Atanh Or Xor Greater GreaterOrEqual Less
    LessOrEqual IsNaN BitwiseAnd BitwiseOr BitwiseXor ReduceLogSumExp ArgMin CumSum Det Size
    GatherND ScatterElements Scatter EyeLike Trilu ReverseSequence CenterCropPad Col2Im AffineGrid
    LpPool AveragePool MaxPool MaxUnpool RoiAlign LpNormalization MeanVarianceNormalization Shrink
    Hardmax StringSplit
    RegexFullMatch LabelEncoder TfIdfVectorizer
    """.split()  # noqa: SIM905
)

# Onnx stamps new cases with versions that ONNX Runtime does not have yet.
NEWEST_OPSET = 26
NEWEST_IR = 12
# Only older versions of these operators are in ONNX Runtime; the cases fit them, too.
OLDER = {"RoiAlign": 16}

# The compiler says Mish in other operators (models/compiler/optimising/rewrite.py): 1e-6 of the largest
# |x|, here 10.
ABSOLUTE = {"Mish": 1e-5}

TYPES = "an element type that neither NumPy nor the Open Inference Protocol has"
RANDOM = "random: another generator"

#: Name of cases -> why plain ONNX Runtime does not give the expected answer.
LEFT_OUT: dict[str, str] = {
    **dict.fromkeys(
        (
            "test_cast*FLOAT8*",
            "test_cast*FLOAT4*",
            "test_cast*INT[24]_*",
            "test_cast_*_to_*INT[24]",
            "test_cast*BFLOAT16*",
            "test_*quantizelinear_e[45]m*",
            "test_*quantizelinear_*int[24]",
            "test_*quantizelinear_float4e2m1",
            "test_celu_bfloat16_expanded",
            "test_range_bfloat16_type_positive_delta_expanded",
        ),
        TYPES,
    ),
    **dict.fromkeys(
        (
            "test_celu_*float16",
            "test_einsum_*bfloat16",
            "test_compress_bfloat16",
            "test_onehot_with_bfloat16_values",
            "test_unique_bfloat16*",
            "test_reversesequence_bfloat16",
            "test_range_*float16_type_positive_delta",
            "test_bitshift_*_int*",
            "test_spacetodepth_[cd][cr][rd]_mode_example",
        ),
        "newer than the operators of ONNX Runtime",
    ),
    **dict.fromkeys(
        (
            "test_bitshift_*_uint16",
            "test_max_*int16",
            "test_min_*int16",
            "test_pow_types_float32_uint*",
            "test_top_k_uint64",
            "test_convinteger_with_padding",
            "test_mod_*fmod_0*",
            "test_reduce_max_empty_set_bool",
            "test_lstm_batchwise",
            "test_gru_batchwise",
            "test_simple_rnn_batchwise",
        ),
        "not implemented in ONNX Runtime",
    ),
    **dict.fromkeys(
        (
            "test_maxunpool_export_with_output_shape",
            "test_resize_downsample_scales_*_align_corners",
        ),
        "ONNX Runtime computes something else",
    ),
    "test_training_dropout_default*": RANDOM,
    "test_training_dropout_mask": RANDOM,
    "test_training_dropout": RANDOM,
}


@dataclass(frozen=True)
class NodeCase:
    """One case: ``inputs`` and ``expected`` by name."""

    name: str
    model: onnx.ModelProto
    inputs: Mapping[str, NDArray[Any]]
    expected: Mapping[str, NDArray[Any]]
    rtol: float
    atol: float

    @property
    def reason(self) -> str | None:
        """Why it is left out."""
        return next((why for name, why in LEFT_OUT.items() if fnmatch(self.name, name)), None)


def collect() -> dict[str, list[NodeCase]]:
    """Return the cases of tensors by operator, with those of an operator expanded to others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cases divide by zero on purpose
        return _by_operator(node.collect_testcases(None), OPERATORS)


def collect_one(operator: str) -> list[NodeCase]:
    """Return the cases of ``operator`` alone: a module computes its answers when it is imported."""
    names = operator.lower(), f"{operator.lower()}op"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.iter_modules(node.__path__):
            if module.name.replace("_", "") in names:
                importlib.import_module(f"{node.__name__}.{module.name}")
    return _by_operator(node._NodeTestCases, [operator])[operator]


def _by_operator(found: Iterable[TestCase], operators: Iterable[str]) -> dict[str, list[NodeCase]]:
    cases = {case.name: case for case in found}
    made: dict[str, list[NodeCase]] = {operator: [] for operator in operators}
    for case in cases.values():
        base = cases.get(case.name.split("_expanded")[0], case)
        operator = base.model.graph.node[0].op_type if base.model else ""
        if operator in made and (each := _node_case(case, operator)) is not None:
            made[operator].append(each)
    return made


def _node_case(case: TestCase, operator: str) -> NodeCase | None:
    """Return ``case``, None where it has sequences or optional values, which no request can carry."""
    assert case.model is not None
    assert case.data_sets is not None
    inputs, outputs = case.data_sets[0]
    if any(isinstance(item, list | dict) or item is None for item in (*inputs, *outputs)):
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = min(model.ir_version, NEWEST_IR)
    for item in model.opset_import:
        if not item.domain:
            item.version = min(item.version, OLDER.get(operator, NEWEST_OPSET))
    return NodeCase(
        case.name,
        model,
        {port.name: _array(item) for port, item in zip(model.graph.input, inputs, strict=True)},
        {port.name: _array(item) for port, item in zip(model.graph.output, outputs, strict=True)},
        case.rtol,
        max(case.atol, ABSOLUTE.get(operator, 0.0)),
    )


def _array(item: Any) -> NDArray[Any]:
    if isinstance(item, onnx.TensorProto):
        return numpy_helper.to_array(item)
    return np.asarray(item)


Arrays = Mapping[str, NDArray[Any]]


@pytest.fixture(scope="module")
def cases() -> dict[str, list[NodeCase]]:
    return collect()


def plain(case: NodeCase) -> dict[str, NDArray[Any]] | None:
    """What ONNX Runtime gives without us, None where it gives nothing."""
    try:
        session = open_session(case.model.SerializeToString(), session_options(optimise=True))
        names = [port.name for port in session.get_outputs()]
        results = session.run(names, dict(case.inputs))
    except Exception:  # noqa: BLE001  its errors share no base class of their own
        return None
    return {name: np.asarray(result) for name, result in zip(names, results, strict=True)}


def through_a_pack(case: NodeCase, folder: Path) -> dict[str, NDArray[Any]]:
    source = folder / "m.onnx"
    source.write_bytes(case.model.SerializeToString())
    shapes = {name: array.shape for name, array in case.inputs.items() if array.shape}
    return streamed(
        compiled(source, folder, CompileOptions(shapes=shapes, force=True)), case.inputs
    )


def check(case: NodeCase, folder: Path) -> None:
    if case.reason is None:
        same(through_a_pack(case, folder), case.expected, case.rtol, case.atol)
        return
    known = plain(case)
    if known is None or case.reason == TYPES:
        with pytest.raises((ModelError, KernelError)):
            through_a_pack(case, folder)
    elif case.reason != RANDOM:
        same(through_a_pack(case, folder), known, case.rtol, case.atol)


@pytest.mark.parametrize("operator", [name for name in OPERATORS if name not in ALIKE])
def test_first_case_of_an_operator(operator: str, tmp_path: Path) -> None:
    usual = [case for case in collect_one(operator) if case.reason is None]
    check(usual[0], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_case_of_an_operator(
    operator: str, cases: dict[str, list[NodeCase]], tmp_path: Path
) -> None:
    for case in cases[operator]:
        check(case, tmp_path)


@pytest.mark.slow
def test_what_is_left_out_exists(cases: dict[str, list[NodeCase]]) -> None:
    names = [case.name for found in cases.values() for case in found]
    for pattern in LEFT_OUT:
        assert any(fnmatch(name, pattern) for name in names), pattern
