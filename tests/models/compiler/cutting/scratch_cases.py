"""Models of one or a few operators; memory of their kernels would be large beside their tensors."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.runtime.sessions import open_session, session_options

_TYPES = {
    "f": TensorProto.FLOAT,
    "h": TensorProto.FLOAT16,
    "d": TensorProto.DOUBLE,
    "l": TensorProto.INT64,
    "i": TensorProto.INT32,
    "u": TensorProto.UINT8,
    "b": TensorProto.INT8,
    "o": TensorProto.BOOL,
}
CONTRIB = "com.microsoft"

#: "f 1,3,8,8" is an input, "w 8,3,3,3" a weight of ones, "wu 8" one of bytes; None: left out.
Tensor = str | NDArray[Any] | None


@dataclass(frozen=True)
class Case:
    """``operator`` on ``tensors`` with ``outputs``; then each of ``then``, on what the one before made."""

    operator: str
    tensors: tuple[Tensor, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int = 20
    then: tuple["Case", ...] = ()

    def model(self) -> onnx.ModelProto:
        """Return it as a model whose outputs have the shapes that ONNX Runtime infers."""
        nodes: list[onnx.NodeProto] = []
        inputs: list[onnx.ValueInfoProto] = []
        weights: list[onnx.TensorProto] = []
        results: list[str] = []
        for case in (self, *self.then):
            names = results[:1]
            for tensor in case.tensors:
                name = f"x{len(inputs) + len(weights)}"
                names.append(name if tensor is not None else "")
                if isinstance(tensor, str) and tensor[0] != "w":
                    inputs.append(_port(name, tensor))
                elif tensor is not None:
                    weights.append(numpy_helper.from_array(_constant(tensor), name))
            results = [f"y{len(nodes)}_{index}" for index in range(case.outputs)]
            domain, _, kind = case.operator.rpartition(".")
            nodes.append(helper.make_node(kind, names, results, domain=domain, **case.attributes))
        outputs = [onnx.ValueInfoProto(name=name) for name in results]
        graph = helper.make_graph(nodes, "case", inputs, outputs, weights)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(CONTRIB, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return _with_output_types(model)


def _with_output_types(model: onnx.ModelProto) -> onnx.ModelProto:
    session = open_session(model.SerializeToString(), session_options(optimise=False))
    types = {"float": "FLOAT", "double": "DOUBLE"}
    for port, value in zip(session.get_outputs(), model.graph.output, strict=True):
        element = port.type.removeprefix("tensor(").removesuffix(")")
        element_type = TensorProto.DataType.Value(types.get(element, element.upper()))
        shape = [dim if isinstance(dim, int) and dim >= 0 else None for dim in port.shape]
        if not shape:  # it has no rank, or none that ONNX Runtime knows
            shape = [*session.run([port.name], _ones(model))[0].shape]
        value.CopyFrom(helper.make_tensor_value_info(port.name, element_type, shape))
    return model


def _ones(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    return {
        value.name: np.ones(
            [dim.dim_value for dim in value.type.tensor_type.shape.dim],
            helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
        )
        for value in model.graph.input
    }


def _port(name: str, tensor: str) -> onnx.ValueInfoProto:
    kind, shape = tensor[0], tensor[2:]
    return helper.make_tensor_value_info(name, _TYPES[kind], _shape(shape))


def _shape(text: str) -> list[int]:
    return [int(length) for length in text.split(",") if length]


def _constant(tensor: Tensor) -> NDArray[Any]:
    if isinstance(tensor, str):
        kind, _, shape = tensor[1:].partition(" ")
        dtype = helper.tensor_dtype_to_np_dtype(_TYPES[kind or "f"])
        return np.ones(_shape(shape), dtype)
    assert tensor is not None
    return tensor


def _i(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def _f(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def _case(
    operator: str, *tensors: Tensor, outputs: int = 1, opset: int = 20, **attributes: Any
) -> Case:
    return Case(operator, tensors, attributes, outputs, opset)


_MAP = "f 1,63,64,64"
_PADS = [1, 1, 1, 1]
_HALF = np.array(0.5, np.float32)
_ZERO = np.array(3, np.uint8)
_Q = (_HALF, _ZERO)
_AXES = (_i(1), _i(3), _i(2, 3), _i(0, 2), _i(1, 3), _i(0, 1, 2, 3))
_REDUCTIONS = ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_UNARY = """
    Abs Ceil Celu Clip Elu Erf Exp Floor Gelu HardSigmoid HardSwish LeakyRelu Log Mish Neg
    Reciprocal Relu Round Selu Sigmoid Sign Softplus Softsign Sqrt Tanh ThresholdedRelu
    Identity Flatten Dropout Shape
""".split()  # noqa: SIM905  a page of quotes says less
_BINARY = ("Add", "Div", "Mod", "Mul", "Pow", "Sub")
_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")

#: What pieces of networks have, whose memory has a formula.
FORMULA_CASES: tuple[Case, ...] = (
    *(_case(operator, _MAP) for operator in _UNARY),
    *(
        _case(operator, *tensors, **({"fmod": 1} if operator == "Mod" else {}))
        for operator in (*_BINARY, "Max", "Min", "Sum", "PRelu")
        for tensors in ((_MAP, _MAP), (_MAP, "f 1,63,1,1"), (_MAP, "w 63,1,1"))
    ),
    *(
        _case(operator, "f 512,1", "f 1,700", **({"fmod": 1} if operator == "Mod" else {}))
        for operator in (*_BINARY, *_COMPARISONS)
    ),
    *(_case(operator, "o 512,1", "o 1,700") for operator in ("And", "Or")),
    _case("Not", "o 1,63,64,64"),
    *(
        _case(f"Reduce{kind}", "f 2,63,64,64", axes, opset=18)
        for kind in _REDUCTIONS
        for axes in _AXES
    ),
    *(
        _case(operator, "f 2,63,64,64", axis=axis)
        for operator in ("ArgMax", "ArgMin", "Softmax", "LogSoftmax")
        for axis in (0, 1, 3)
    ),
    *(_case("Softmax", "f 2,63,64,64", axis=axis, opset=11) for axis in (1, 2, 3)),
    *(_case("Transpose", _MAP, perm=perm) for perm in ([0, 2, 3, 1], [3, 2, 1, 0], [0, 2, 1, 3])),
    *(_case("Concat", _MAP, _MAP, axis=axis) for axis in (1, 3)),
    *(
        _case("Split", _MAP, _i(*lengths), outputs=2, axis=axis)
        for axis, lengths in ((1, (32, 31)), (3, (32, 32)))
    ),
    _case("Slice", _MAP, _i(0, 0), _i(60, 60), _i(2, 3)),
    _case("Slice", _MAP, _i(0, -1), _i(60, -60), _i(2, 3), _i(2, -3)),
    *(
        _case("Pad", _MAP, _i(0, 0, 2, 2, 0, 0, 2, 2), mode=mode)
        for mode in ("constant", "reflect", "edge")
    ),
    _case("Pad", _MAP, _i(0, 0, -2, 2, 0, 0, 2, -2)),
    _case("Tile", _MAP, _i(1, 2, 2, 2)),
    _case("Expand", "f 63,1,64", _i(2, 63, 64, 64)),
    *(_case("Gather", _MAP, "l 32", axis=axis) for axis in (1, 3)),
    _case("DepthToSpace", "f 1,64,64,64", blocksize=2),
    _case("DepthToSpace", "f 1,64,64,64", blocksize=2, mode="CRD"),
    _case("SpaceToDepth", _MAP, blocksize=2),
    _case("Reshape", _MAP, _i(1, -1)),
    _case("Squeeze", _MAP, _i(0)),
    _case("Unsqueeze", _MAP, _i(0)),
    _case("Cast", _MAP, to=TensorProto.INT64),
    _case("Cast", "u 1,63,64,64", to=TensorProto.FLOAT),
    _case("Cast", _MAP, to=TensorProto.FLOAT16),
    _case("Cast", "h 1,63,64,64", to=TensorProto.FLOAT),
    *(_case("CumSum", _MAP, np.array(axis)) for axis in (1, 3)),
    _case("BatchNormalization", _MAP, *["w 63"] * 4),
    _case("InstanceNormalization", "f 2,63,64,64", "w 63", "w 63"),
    _case("LayerNormalization", "f 1,256,300", "w 300", "w 300", axis=-1),
    _case("LayerNormalization", "f 1,256,300", "w 256,300", axis=1),
    _case("LRN", _MAP, size=5),
    _case("MatMul", "f 64,3000", "w 3000,64"),
    _case("MatMul", "f 1,2048", "w 2048,1000"),
    _case("MatMul", "f 12,197,64", "f 12,64,197"),
    _case("MatMul", "f 8,1,64,64", "f 1,8,64,64"),
    _case("Gemm", "f 256,256", "f 256,256", transA=1, transB=1),
    _case("Gemm", "f 256,256", "w 256,256", "w 256,1", alpha=0.5),
    _case("Gemm", "f 1,2048", "w 1000,2048", "w 1000", transB=1),
    _case(f"{CONTRIB}.FusedMatMul", "f 64,3000", "f 64,3000", transB=1),
    _case(f"{CONTRIB}.FusedMatMul", "f 8,256,64", "f 8,256,64", transA=1, alpha=0.5),
    _case(f"{CONTRIB}.FusedMatMul", "f 8,64,256", "f 64,8,256", transBatchA=1, transB=1),
    _case(f"{CONTRIB}.FusedGemm", "f 256,256", "w 256,256", activation="Relu"),
    Case("Conv", ("f 1,15,64,64", "w 15,15,3,3"), then=(_case("Relu"),)),
    Case("Conv", ("f 1,15,64,64", "w 15,5,5,5"), {"group": 3}, then=(_case("Sigmoid"),)),
    _case(f"{CONTRIB}.Gelu", "f 1,256,300"),
    _case(f"{CONTRIB}.QuickGelu", "f 1,256,300"),
    _case(f"{CONTRIB}.FastGelu", "f 1,256,300"),
    _case(f"{CONTRIB}.FastGelu", "f 1,256,300", "w 300"),
    _case(f"{CONTRIB}.BiasGelu", "f 1,256,300", "w 300"),
    _case(f"{CONTRIB}.SkipLayerNormalization", *["f 1,256,300"] * 2, *["w 300"] * 3),
    # Convolutions: planes, groups, one and three axes, more filters than pixels; several images.
    _case("Conv", "f 1,15,64,64", "w 15,15,3,3", pads=_PADS),
    _case("Conv", "f 1,63,64,64", "w 63,1,3,3", group=63, pads=_PADS),
    _case("Conv", "f 1,15,4096", "w 15,15,3", pads=[1, 1]),
    _case("Conv", "f 1,9,16,16,16", "w 9,9,3,3,3"),
    _case("Conv", "f 2,15,64,64", "w 15,15,3,3", pads=_PADS),
    _case("Conv", "f 1,255,7,7", "w 255,255,3,3", pads=_PADS),
    _case("Conv", "f 1,63,64,64", "w 63,63,1,1", strides=[2, 2]),
    _case("ConvTranspose", "f 1,15,32,32", "w 15,15,3,3", strides=[2, 2]),
    _case("ConvTranspose", "f 1,15,32,32", "w 15,5,3,3", strides=[2, 2], group=3),
    _case("ConvTranspose", "f 1,9,8,8,8", "w 9,9,3,3,3"),
    _case("ConvTranspose", "f 1,15,512", "w 15,15,4", strides=[2]),
    *(
        _case(pool, *tensors, kernel_shape=kernel, strides=[2] * len(kernel))
        for pool in ("MaxPool", "AveragePool")
        for tensors, kernel in (
            ((_MAP,), [3, 3]),
            (("f 1,63,4096",), [3]),
            (("f 1,9,16,16,16",), [3, 3, 3]),
        )
    ),
    _case("MaxPool", _MAP, kernel_shape=[3, 3], outputs=2),
    *(_case(pool, _MAP) for pool in ("GlobalAveragePool", "GlobalMaxPool")),
    # The blocked layout.
    Case(
        "Conv",
        ("f 1,16,64,64", "w 32,16,3,3"),
        {"pads": _PADS},
        then=(
            _case("MaxPool", kernel_shape=[2, 2], strides=[2, 2]),
            _case("Conv", "w 32,32,3,3", pads=_PADS),
            _case("AveragePool", kernel_shape=[2, 2]),
            _case(
                "Resize",
                None,
                _f(1, 1, 2, 2),
                mode="nearest",
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            ),
            _case("Conv", "w 32,32,1,1"),
        ),
    ),
    *(
        Case(
            "Conv",
            ("f 1,16,64,64", "w 32,16,3,3"),
            {},
            then=(_case(pool), _case("Conv", "w 32,32,1,1")),
        )
        for pool in ("GlobalAveragePool", "GlobalMaxPool")
    ),
    *(
        _case("Resize", "f 1,15,200,200", None, _f(1, 1, scale, scale), mode=mode)
        for mode in ("nearest", "linear")
        for scale in (0.5, 2)
    ),
    _case("Resize", "f 1,15,1,4000", None, _f(1, 1, 1, 2), mode="linear"),
    _case("Resize", "f 1,9,16,16,16", None, _f(1, 1, 2, 2, 2), mode="linear"),
    _case("Resize", "f 1,200,200,15", None, _f(1, 2, 2, 1), mode="linear"),
    _case("Upsample", "f 1,15,200,200", _f(1, 1, 2, 2), opset=9, mode="linear"),
    # Bytes.
    _case("QuantizeLinear", _MAP, *_Q),
    _case("QuantizeLinear", _MAP, "w 63", "wu 63", axis=1),
    _case("DequantizeLinear", "u 1,63,64,64", *_Q),
    _case("DynamicQuantizeLinear", "f 256,300", outputs=3),
    _case("MatMulInteger", "u 256,300", "wb 300,256"),
    _case("MatMulInteger", "u 1,2048", "wb 2048,1000"),
    _case("ConvInteger", "u 1,16,64,64", "wu 16,16,3,3"),
    _case("QLinearConv", "u 1,16,64,64", *_Q, "wu 16,16,3,3", *_Q, *_Q, pads=_PADS),
    _case("QLinearConv", "u 1,63,64,64", *_Q, "wu 63,1,3,3", *_Q, *_Q, group=63),
    _case("QLinearConv", "u 1,16,16,16,16", *_Q, "wu 16,16,3,3,3", *_Q, *_Q),
    _case("QLinearMatMul", "u 256,300", *_Q, "wu 300,256", *_Q, *_Q),
    _case(f"{CONTRIB}.MatMulIntegerToFloat", "u 256,300", "wb 300,256", "w 1", "w 1"),
    _case(f"{CONTRIB}.DynamicQuantizeMatMul", "f 256,300", "wb 300,256", "w 1"),
    _case(f"{CONTRIB}.QGemm", "u 256,300", *_Q, "wu 300,256", *_Q, None, *_Q),
    *(
        _case(f"{CONTRIB}.{operator}", first, *_Q, second, *_Q, *_Q)
        for operator in ("QLinearAdd", "QLinearMul")
        for first, second in (
            ("u 1,63,64,64", "u 1,63,64,64"),
            ("u 1,63,64,64", "u 1,63,1,1"),
            ("u 512,1", "u 1,700"),
        )
    ),
    _case(f"{CONTRIB}.QLinearSigmoid", "u 1,63,64,64", *_Q, *_Q),
    _case(f"{CONTRIB}.QLinearLeakyRelu", "u 1,63,64,64", *_Q, *_Q),
    _case(f"{CONTRIB}.QLinearConcat", *_Q, "u 1,63,64,64", *_Q, "u 1,63,64,64", *_Q, axis=1),
    _case(f"{CONTRIB}.NhwcMaxPool", "u 1,64,64,63", kernel_shape=[3, 3], strides=[2, 2]),
    _case(f"{CONTRIB}.QLinearConv", "u 1,64,64,16", *_Q, "wu 16,16,3,3", *_Q, *_Q, channels_last=1),
    _case(f"{CONTRIB}.QLinearAveragePool", "u 1,63,64,64", *_Q, *_Q, kernel_shape=[2, 2]),
    _case(f"{CONTRIB}.QLinearGlobalAveragePool", "u 1,63,64,64", *_Q, *_Q),
    _case(f"{CONTRIB}.QuantizeLinear", _MAP, *_Q),
    _case(f"{CONTRIB}.DequantizeLinear", "u 1,63,64,64", *_Q),
)

_ROWS = "f 1,512,64"
_SCALES = _f(1, 1, 2, 2)

#: What is measured when it is compiled.
MEASURED_CASES: tuple[Case, ...] = (
    _case("Attention", _ROWS, _ROWS, _ROWS, opset=23, q_num_heads=4, kv_num_heads=4, softcap=9.0),
    _case("Attention", _ROWS, _ROWS, _ROWS, opset=24, q_num_heads=4, kv_num_heads=4),
    _case("Attention", *["f 1,4,512,16"] * 3, "f 512,512", opset=24),
    _case("Attention", *["f 1,4,512,16"] * 3, opset=23),
    _case("Attention", *["f 1,4,512,16"] * 3, opset=23, is_causal=1),
    _case(f"{CONTRIB}.MultiHeadAttention", _ROWS, _ROWS, _ROWS, num_heads=4),
    _case(
        f"{CONTRIB}.MultiHeadAttention",
        *(_ROWS, _ROWS, _ROWS, None, None, "f 1,4,512,512"),
        num_heads=4,
    ),
    _case(f"{CONTRIB}.Attention", _ROWS, "w 64,192", "w 192", num_heads=4),
    _case(
        f"{CONTRIB}.QAttention",
        "u 1,512,64",
        "wb 64,192",
        "w 192",
        "w 1",
        "w 1",
        None,
        "wu 1",
        "wb 1",
        num_heads=4,
    ),
    _case(
        f"{CONTRIB}.GroupQueryAttention",
        *("f 1,1,64", "f 1,1,32", "f 1,1,32", "f 1,2,2048,16", "f 1,2,2048,16"),
        *(np.array([[200]], np.int32), np.array(201, np.int32)),
        outputs=3,
        num_heads=4,
        kv_num_heads=2,
    ),
    _case("LSTM", "f 64,1,64", "w 1,256,64", "w 1,256,64", hidden_size=64),
    _case(
        "LSTM", "f 64,1,64", "w 2,256,64", "w 2,256,64", hidden_size=64, direction="bidirectional"
    ),
    _case("GRU", "f 64,1,64", "w 1,192,64", "w 1,192,64", hidden_size=64),
    _case("RNN", "f 64,1,64", "w 1,64,64", "w 1,64,64", hidden_size=64),
    _case("Einsum", "f 8,64,128", "f 8,128,64", equation="bij,bjk->kib"),
    _case("DeformConv", "f 1,16,32,32", "w 16,16,3,3", "f 1,18,30,30", opset=19),
    _case("Resize", "f 1,15,64,64", None, _SCALES, mode="cubic"),
    _case("Resize", "f 1,15,64,64", None, _f(1, 1, 0.5, 0.5), mode="linear", antialias=1),
    _case("TopK", "f 1,100000", _i(50000), outputs=2),
    _case("TopK", "f 100000,4", _i(1000), outputs=2, axis=0),
    _case("NonMaxSuppression", "f 1,3000,4", "f 1,1,3000", _i(100), _f(0.5), _f(0.0)),
    _case("NonZero", _MAP),
    _case("Where", "o 512,1", "f 1,512", "f 512,512"),
    _case("ScatterElements", _MAP, "l 1,8,64,64", "f 1,8,64,64", axis=1),
    _case("ScatterND", "f 64,64,64", "l 1000,2", "f 1000,64", reduction="add"),
    _case("GatherND", "f 64,4", "l 100000,1"),
    _case("GatherElements", _MAP, "l 1,63,64,64", axis=1),
    _case("Hardmax", "f 2,63,64,64", axis=1),
    _case("Max", _MAP, _MAP, _MAP, "f 1,1,64,64"),
    _case("Sum", _MAP, _MAP, _MAP),
    _case("DFT", "f 1,1000,64,1", None, np.array(1)),
    _case("STFT", "f 1,16384,1", np.array(128), "f 256", np.array(256)),
    _case("GridSample", "f 1,15,64,64", "f 1,64,64,2"),
    _case("RoiAlign", "f 1,15,64,64", "f 100,4", "l 100", output_height=7, output_width=7),
    _case("GroupNormalization", "f 1,64,64,64", "w 64", "w 64", num_groups=8, opset=21),
    _case("MeanVarianceNormalization", "f 1,63,64,64"),
    _case("LpNormalization", "f 1,63,64,64", axis=1),
    _case("AffineGrid", "f 1,2,3", _i(1, 1, 256, 256)),
    _case("Col2Im", "f 1,144,1024", _i(34, 34), _i(3, 3)),
    _case("OneHot", "l 512", np.array(512), _f(0, 1)),
    _case("Det", "f 64,64,64"),
    _case(f"{CONTRIB}.Inverse", "f 16,64,64"),
    _case(f"{CONTRIB}.CDist", "f 512,64", "f 512,64", metric="euclidean"),
    _case(
        f"{CONTRIB}.MatMulNBits",
        "f 64,256",
        "wu 128,8,16",
        "w 1024",
        K=256,
        N=128,
        bits=4,
        block_size=32,
    ),
    _case("Conv", "h 1,16,64,64", "wh 16,16,3,3"),
    *(_case(operator, "h 1,16,64,64") for operator in ("Relu", "Sigmoid")),
    _case("Add", "h 1,16,64,64", "h 1,16,64,64"),
    _case("MatMul", "h 256,256", "wh 256,256"),
    _case("Add", "d 1,16,64,64", "d 1,16,64,64"),
    _case("MatMul", "d 256,256", "wd 256,256"),
)
