"""Models made here to measure the service with, small enough that HTTP, not the network, takes the time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.load.messages import infer_request, tensors_document

#: Input "x" and output "y" of ``tiny``, both float32.
TINY_SHAPE = (1, 16)
#: Input "image" and output "mixed" of ``wide``, both float32: 600 KB, 3 MB as JSON, each.
WIDE_SHAPE = (1, 3, 224, 224)


def _save(
    path: Path,
    nodes: list[onnx.NodeProto],
    shape: tuple[int, ...],
    weights: list[onnx.TensorProto],
    output_shape: tuple[int, ...] | None = None,
) -> Path:
    inputs, outputs = nodes[0].input[0], nodes[-1].output[0]
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info(inputs, TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(outputs, TensorProto.FLOAT, output_shape or shape)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


def _weight(name: str, *shape: int) -> onnx.TensorProto:
    values = np.random.default_rng(16).standard_normal(shape) / 4
    return numpy_helper.from_array(values.astype(np.float32), name)


def tiny(folder: Path) -> Path:
    """Write tiny.onnx: a product with a 16 x 16 matrix and a ReLU."""
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
    ]
    return _save(folder / "tiny.onnx", nodes, TINY_SHAPE, [_weight("weight", 16, 16)])


def heavy(folder: Path) -> Path:
    """Write heavy.onnx: the input of ``tiny``, some hundred million products, and as small an output."""
    channels, side, layers = 64, 48, 4
    nodes = [
        helper.make_node("MatMul", ["x", "spread"], ["flat"]),
        helper.make_node("Reshape", ["flat", "shape"], ["map0"]),
    ]
    weights = [
        _weight("spread", TINY_SHAPE[1], side * side),
        numpy_helper.from_array(np.array([1, 1, side, side]), "shape"),
    ]
    for layer in range(layers):
        before = channels if layer else 1
        weights.append(_weight(f"weight{layer}", channels, before, 3, 3))
        names = [f"map{layer}", f"weight{layer}"]
        nodes.append(helper.make_node("Conv", names, [f"sum{layer}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"sum{layer}"], [f"map{layer + 1}"]))
    weights.append(_weight("gather", channels, TINY_SHAPE[1]))
    nodes += [
        helper.make_node("GlobalAveragePool", [f"map{layers}"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["vector"]),
        helper.make_node("MatMul", ["vector", "gather"], ["y"]),
    ]
    return _save(folder / "heavy.onnx", nodes, TINY_SHAPE, weights)


def wide(folder: Path) -> Path:
    """Write wide.onnx: little to compute, but megabytes of input and of output."""
    nodes = [
        helper.make_node("Conv", ["image", "weight"], ["sum"], kernel_shape=[1, 1]),
        helper.make_node("Relu", ["sum"], ["mixed"]),
    ]
    return _save(folder / "wide.onnx", nodes, WIDE_SHAPE, [_weight("weight", 3, 3, 1, 1)])


def pooled(folder: Path) -> Path:
    """Write pooled.onnx: little to compute, megabytes of input, and the mean of each channel out."""
    nodes = [
        helper.make_node("Conv", ["image", "weight"], ["sum"], kernel_shape=[1, 1]),
        helper.make_node("GlobalAveragePool", ["sum"], ["mean"]),
    ]
    weights = [_weight("weight", 3, 3, 1, 1)]
    return _save(folder / "pooled.onnx", nodes, WIDE_SHAPE, weights, (1, 3, 1, 1))


def drawn_request(
    model: str, name: str, shape: tuple[int, ...], parameters: Mapping[str, Any] | None = None
) -> bytes:
    """Return an infer request to ``model`` of one drawn float32 tensor, as JSON."""
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    document = tensors_document({name: values})
    return infer_request(model, document | ({"parameters": parameters} if parameters else {}))
