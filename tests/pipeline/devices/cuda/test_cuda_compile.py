"""What compiling for a GPU must see to: constants folded, shapes that are computed, pieces of one place."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipeline.devices.find import cuda_kernels
from pipeline.planning.make import make_plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import thinned
from tests.pipeline.devices.cuda.driving import driver_of
from tests.pipeline.devices.cuda.space import Kernels
from tests.pipeline.devices.cuda.test_cuda_networks import compiled, device_on, engine_of
from tests.pipeline.devices.nodes import numbers


def saved(
    path: Path,
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray],
    shape: list[int],
    opset: int,
) -> Path:
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", ports, results, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    onnx.save(model, path)
    return path


def on_cpu(folder: Path, source: Path) -> list[str]:
    """Why pieces of the compiled model run on the CPU."""
    pack = compiled(source, folder)
    graphs = (
        pack.graphs[number] for number in dict.fromkeys(p.graph for p in pack.manifest.pieces)
    )
    return [reason for graph in graphs if (reason := cuda_kernels(graph).reason)]


def test_bodies_of_functions_are_folded(tmp_path: Path) -> None:
    weights = {"w": numbers(8, 4, 3, 3), "s": numbers(8), "b": numbers(8), "v": numbers(6, 8, 1, 1)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("GroupNormalization", ["a", "s", "b"], ["c"], num_groups=2),
        helper.make_node("HardSwish", ["c"], ["d"]),
        helper.make_node("Conv", ["d", "v"], ["y"]),
    ]
    source = saved(tmp_path / "norm.onnx", nodes, weights, [1, 4, 9, 9], 21)
    assert on_cpu(tmp_path, source) == []


def test_an_operator_without_a_kernel_takes_no_neighbour_along(tmp_path: Path) -> None:
    weights = {"w": numbers(8, 4, 3, 3), "v": numbers(6, 8, 1, 1)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Sin", ["b"], ["c"]),
        helper.make_node("Conv", ["c", "v"], ["d"]),
        helper.make_node("Exp", ["d"], ["y"]),
    ]
    source = saved(tmp_path / "sin.onnx", nodes, weights, [1, 4, 9, 9], 17)
    assert on_cpu(tmp_path, source) == ["Sin: no kernel"]


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("size", thinned([((13, 12),), ((13, 13),), ((12, 13),), ((9, 14),)], 2))
def test_a_last_window_in_the_padding_is_no_window(
    kernels: Kernels, tmp_path: Path, kind: str, size: tuple[int, int]
) -> None:
    weights = {"w": numbers(32, 4, 3, 3), "v": numbers(5, 32, 1, 1)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node(
            kind, ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1
        ),
        helper.make_node("Conv", ["c", "v"], ["d"]),
        helper.make_node(
            kind, ["d"], ["y"], kernel_shape=[3, 2], strides=[2, 2], pads=[1, 1, 0, 1], ceil_mode=1
        ),
    ]
    source = saved(tmp_path / "pools.onnx", nodes, weights, [1, 4, *size], 17)
    image = numbers(1, 4, *size)
    wanted = ort.InferenceSession(source).run(None, {"x": image})[0]
    pack = compiled(source, tmp_path)
    assert pack.manifest.outputs[0].shape == wanted.shape
    with device_on(driver_of(kernels)) as device:
        plan = make_plan(Program.as_compiled(pack), ARCHITECTURES["pre"])
        with engine_of(pack, plan, device) as (engine, _):
            result = engine.run({"x": image})[0]["y"]
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)
