"""Tiny networks, one for each thing that the compiler treats in its own way."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.parser import parse_model

from models.compiler.writing.write import write_graph, write_optimised
from models.graphs.reader import graph_at
from models.initial import initialise
from models.runtime.sessions import open_reference
from models.zoo.builder import SkeletonBuilder, ZooTensor

Arrays = Mapping[str, NDArray[Any]]

#: Small enough to cut the layers of these networks into several chunks.
CHUNK_BYTES = 40_000


def filled(
    skeleton: onnx.ModelProto, seed: int = 0, biases: Arrays | None = None
) -> onnx.ModelProto:
    """Return a copy of ``skeleton`` that holds its weights: for models small enough to be held twice.

    Raises:
        ModelError: as ``initialise``.
    """
    weights = initialise(skeleton, seed, biases)
    model = onnx.ModelProto()
    model.CopyFrom(skeleton)
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
    return model


def parsed(text: str, weights: Mapping[str, tuple[int, ...]] | None = None) -> onnx.ModelProto:
    """Return the model ``graph_name (inputs) => (outputs) { nodes }`` with random ``weights``."""
    model = parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}')
    generator = np.random.default_rng(1)
    for name, shape in (weights or {}).items():
        array = generator.standard_normal(shape, dtype=np.float32)
        array /= np.float32(math.sqrt(math.prod(shape[1:])))
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def _block(b: SkeletonBuilder, x: ZooTensor) -> ZooTensor:
    y = b.relu(b.norm(b.conv(x, 64, 3)))
    return b.relu(b.add(b.norm(b.conv(y, 64, 3)), x))


def residual() -> onnx.ModelProto:
    """Two equal residual blocks of 64 channels, 10 classes; every 3x3 layer is cut in four."""
    b = SkeletonBuilder("residual", 8)
    x = b.relu(b.norm(b.conv(b.image, 64, 3)))
    x = _block(b, _block(b, x))
    return filled(b.model(b.linear(b.flatten(b.global_pool(x)), 10)), seed=3)


def concat() -> onnx.ModelProto:
    """Dense blocks: what earlier layers made is joined along the channels, twice."""
    return parsed(
        """concat (float[1,16,8,8] x) => (float[1,64,8,8] y) {
            a = Conv<pads=[1,1,1,1]>(x, wa)
            b = Conv<pads=[1,1,1,1]>(x, wb)
            ab = Concat<axis=1>(a, b)
            c = Conv<pads=[1,1,1,1]>(ab, wc)
            y = Concat<axis=1>(ab, c)
        }""",
        {"wa": (16, 16, 3, 3), "wb": (16, 16, 3, 3), "wc": (32, 32, 3, 3)},
    )


def gemm() -> onnx.ModelProto:
    """A fully connected layer stored by output row, a bias, softmax."""
    return parsed(
        """gemm (float[1,256] x) => (float[1,128] y) {
            z = Gemm<transB=1>(x, w, b)
            y = Softmax<axis=1>(z)
        }""",
        {"w": (128, 256), "b": (128,)},
    )


def gemm_by_column() -> onnx.ModelProto:
    """transB=0: the compiler turns the matrix round to cut it."""
    return parsed(
        "by_column (float[1,256] x) => (float[1,128] y) { y = Gemm(x, w, b) }",
        {"w": (256, 128), "b": (128,)},
    )


def matmul() -> onnx.ModelProto:
    """A product of one row is cut like a fully connected layer; the matrix is turned round for it."""
    return parsed(
        "matmul (float[1,256] x) => (float[1,128] y) { z = MatMul(x, w)\n y = Relu(z) }",
        {"w": (256, 128)},
    )


def depthwise() -> onnx.ModelProto:
    """A grouped convolution (never cut) between two pointwise ones."""
    return parsed(
        """depthwise (float[1,32,9,9] x) => (float[1,48,5,5] y) {
            a = Conv(x, wide, bias)
            b = Clip(a, zero, six)
            c = Conv<group=96, pads=[1,1,1,1], strides=[2,2]>(b, depth)
            d = Sigmoid(c)
            y = Conv(d, narrow)
        }""",
        {"wide": (96, 32, 1, 1), "bias": (96,), "depth": (96, 1, 3, 3), "narrow": (48, 96, 1, 1)},
    )


def no_weights() -> onnx.ModelProto:
    return parsed("plain (float[1,3,4,4] x) => (float[1,48] y) { z = Relu(x)\n y = Flatten(z) }")


def only_a_reshape() -> onnx.ModelProto:
    """Not one kernel: the output is the input's memory."""
    return parsed("reshape (float[1,3,4,4] x) => (float[1,48] y) { y = Flatten(x) }")


def two_by_two() -> onnx.ModelProto:
    """Two inputs, two outputs, one of which is also an inner value; odd channel counts."""
    return parsed(
        """two (float[1,5,6,6] p, float[1,5,6,6] q) => (float[1,7,6,6] r, float[1,7] s) {
            sum = Add(p, q)
            r = Conv<pads=[1,1,1,1]>(sum, w, b)
            pooled = GlobalAveragePool(r)
            s = Flatten(pooled)
        }""",
        {"w": (7, 5, 3, 3), "b": (7,)},
    )


def shared_weight() -> onnx.ModelProto:
    """One weight that two layers use."""
    return parsed(
        """shared (float[1,64,6,6] x) => (float[1,64,6,6] y) {
            a = Conv<pads=[1,1,1,1]>(x, w)
            b = Relu(a)
            y = Conv<pads=[1,1,1,1]>(b, w)
        }""",
        {"w": (64, 64, 3, 3)},
    )


def batched() -> onnx.ModelProto:
    """A batch of three: layers stay whole, since channels of one output do not lie together."""
    return parsed(
        "batched (float[3,64,5,5] x) => (float[3,64,5,5] y) { y = Conv<pads=[1,1,1,1]>(x, w) }",
        {"w": (64, 64, 3, 3)},
    )


def _with_limits(model: onnx.ModelProto) -> onnx.ModelProto:
    for name, value in (("zero", 0.0), ("six", 6.0)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.float32), name))
    return model


NETS: dict[str, Callable[[], onnx.ModelProto]] = {
    "residual": residual,
    "concat": concat,
    "gemm": gemm,
    "gemm_by_column": gemm_by_column,
    "matmul": matmul,
    "depthwise": lambda: _with_limits(depthwise()),
    "no_weights": no_weights,
    "only_a_reshape": only_a_reshape,
    "two_by_two": two_by_two,
    "shared_weight": shared_weight,
    "batched": batched,
}


def written(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def one_layer(**changes: Any) -> onnx.ModelProto:
    """Return ``y = Conv(x, w)`` with ``changes`` to the fields of the weight's tensor."""
    model = parsed("one (float[1,4,5,5] x) => (float[1,8,5,5] y) { y = Conv(x, w) }")
    values = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4, 1, 1)
    tensor = numpy_helper.from_array(values, "w")
    for name, value in changes.items():
        if name == "dims":
            del tensor.dims[:]
            tensor.dims.extend(value)
        else:
            setattr(tensor, name, value)
    model.graph.initializer.append(tensor)
    return model


def external(location: str, **entries: str) -> onnx.ModelProto:
    """Return ``one_layer`` whose weight is external data at ``location``."""
    model = one_layer()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return model


WEIGHT_BYTES = 32 * 4


def inputs_for(ports: Mapping[str, tuple[int, ...]], seed: int = 5) -> dict[str, NDArray[Any]]:
    generator = np.random.default_rng(seed)
    return {
        name: generator.standard_normal(shape, dtype=np.float32) for name, shape in ports.items()
    }


def shapes_of(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    return {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in model.graph.input
    }


def answers(path: Path, inputs: Arrays, optimise: bool = False) -> dict[str, NDArray[Any]]:
    """Run the whole model in ``path``, every operator as it stands unless ``optimise`` is set."""
    session = open_reference(write_optimised(path) if optimise else path)
    names = [port.name for port in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def exact_answers(path: Path, inputs: Arrays) -> dict[str, NDArray[Any]]:
    """Run the whole model in ``path`` as it stands, with exact sums of products of bytes."""
    return answers(write_graph(graph_at(path), path.with_name("exact.onnx")), inputs)


def dynamic(dims: str) -> onnx.ModelProto:
    """Return a network whose input has the dimensions ``dims``."""
    return parsed(f"dynamic (float[{dims}] x) => (float y) {{ y = Relu(x) }}")
