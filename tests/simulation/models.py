"""The two networks of a simulated service: small, streamed, with answers that are known."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_WIDTH, _LAYERS = 128, 6


def _weights(rng: np.random.Generator, name: str, width: int) -> onnx.TensorProto:
    values = rng.standard_normal((width, width)) / width**0.5
    return numpy_helper.from_array(values.astype(np.float32), name)


def write_models(folder: Path, seed: int) -> list[Path]:
    """Write chain.onnx and pair.onnx, 400 KB and 1.6 MB of weights, and return their paths."""
    return [
        _chain(folder / "chain.onnx", _WIDTH, 2 * seed),
        _chain(folder / "pair.onnx", 2 * _WIDTH, 2 * seed + 1),
    ]


def _chain(path: Path, width: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    nodes, tensor = [], "x"
    for layer in range(_LAYERS):
        nodes += [
            helper.make_node("MatMul", [tensor, f"w{layer}"], [f"m{layer}"]),
            helper.make_node("Relu", [f"m{layer}"], [f"r{layer}"]),
        ]
        tensor = f"r{layer}"
    shape = [1, width]
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(tensor, TensorProto.FLOAT, shape)],
        [_weights(rng, f"w{layer}", width) for layer in range(_LAYERS)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path
