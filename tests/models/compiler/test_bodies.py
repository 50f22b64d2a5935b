"""Weights and names inside If and Loop: counted, bounded, and unique."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.graphs.nodes import all_graphs, inner_tensors
from models.packs.pack import Pack
from models.runtime.heap import heap_bytes
from pipeline.devices.cpu import CpuDevice
from tests.models.nets import answers, inputs_for, parsed, written
from tests.models.streamed import compiled, same, streamed

ROWS, COLUMNS = 64, 1 << 14  # 4 MiB


def constant(name: str, shape: tuple[int, ...]) -> TensorProto:
    array = np.random.default_rng(0).standard_normal(shape, np.float32)
    return numpy_helper.from_array(array, name)


def branch(as_node: bool, returned: bool = False) -> onnx.ModelProto:
    """An If with a large weight in one branch, as an initializer or as a Constant node."""
    ports = {
        "x": helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, ROWS]),
        "c": helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        "y": helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    }
    weight = constant("w", (1, COLUMNS) if returned else (ROWS, COLUMNS))
    nodes = [helper.make_node("Constant", [], ["w"], value=weight)] if as_node else []
    if not returned:
        nodes.append(helper.make_node("MatMul", ["x", "w"], ["p"]))
    some = helper.make_tensor_value_info("w" if returned else "p", TensorProto.FLOAT, None)
    none = helper.make_tensor_value_info("q", TensorProto.FLOAT, None)
    full = helper.make_graph(nodes, "then", [], [some], [] if as_node else [weight])
    shape = numpy_helper.from_array(np.array([1, COLUMNS], np.int64), "s")
    zeros = helper.make_node("ConstantOfShape", ["s"], ["q"])
    empty = helper.make_graph([zeros], "else", [], [none], [shape])
    node = helper.make_node("If", ["c"], ["y"], then_branch=full, else_branch=empty)
    graph = helper.make_graph([node], "g", [ports["x"], ports["c"]], [ports["y"]])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("as_node", [True, False])
def test_weights_in_branches_are_counted(as_node: bool, tmp_path: Path) -> None:
    pack = compiled(written(branch(as_node), tmp_path / "m.onnx"), tmp_path)
    (piece,) = pack.manifest.resident_pieces
    assert pack.manifest.parameters == ROWS * COLUMNS
    # ONNX Runtime makes a constant of the zeros, too.
    assert pack.manifest.weight_bytes == 4 * ROWS * COLUMNS + 4 * COLUMNS
    assert 0 <= piece.weight_bytes - pack.manifest.weight_bytes < 64
    for condition in (True, False):
        inputs = {**inputs_for({"x": (1, ROWS)}), "c": np.array(condition)}
        expected = answers(tmp_path / "m.onnx", inputs)
        same(streamed(pack, inputs), expected, 1e-5, 1e-5)


@pytest.mark.parametrize("as_node", [True, False])
def test_loading_weights_in_branches_takes_what_was_planned(as_node: bool, tmp_path: Path) -> None:
    pack = compiled(written(branch(as_node), tmp_path / "m.onnx"), tmp_path)
    before = heap_bytes()
    if before is None:
        pytest.skip("the C library does not say")
    kernel = CpuDevice().load(pack.graphs[0])
    taken = heap_bytes()
    assert taken is not None
    # The message itself is held by the pack.
    assert taken - before + len(pack.graphs[0]) <= pack.manifest.graphs[0].session_bytes
    del kernel


@pytest.mark.parametrize("as_node", [True, False])
def test_a_branch_that_returns_its_constant(as_node: bool, tmp_path: Path) -> None:
    source = written(branch(as_node, returned=True), tmp_path / "m.onnx")
    inputs = {**inputs_for({"x": (1, ROWS)}), "c": np.array(True)}
    pack = compiled(source, tmp_path)
    expected = answers(source, inputs)
    same(streamed(pack, inputs), expected)


NESTED = """nested (float[1,16,6,6] x, bool c) => (float[1,16,6,6] y) {
    a = Conv<pads=[1,1,1,1]>(x, w)
    y = If(c) <
        then_branch = t () => (float[1,16,6,6] p) {
            b = Conv<pads=[1,1,1,1]>(a, v)
            p = Relu(b)
        },
        else_branch = e () => (float[1,16,6,6] q) {
            b = Conv<pads=[1,1,1,1]>(a, v)
            q = Sigmoid(b)
        }
    >
}"""


def with_inner_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with the weight ``v`` in each body, where ONNX Runtime blocks its layout."""
    for node in model.graph.node:
        for item in node.attribute:
            if item.HasField("g"):
                item.g.initializer.append(constant("v", (16, 16, 3, 3)))
    return model


def names(pack: Pack) -> list[str]:
    """Return every name that some graph of model.onnx defines."""
    model = onnx.load(pack.model_path, load_external_data=False)
    found: list[str] = []
    for graph in all_graphs(model.graph):
        found += [tensor.name for tensor in graph.initializer]
        found += [name for node in graph.node for name in node.output if name]
    return found


def test_convolutions_before_and_inside_an_if(tmp_path: Path) -> None:
    """ONNX Runtime names what it inserts before both ``reorder_token_0``."""
    model = with_inner_weights(parsed(NESTED, {"w": (16, 16, 3, 3)}))
    source = written(model, tmp_path / "m.onnx")
    pack = compiled(source, tmp_path)
    outer = onnx.load(pack.model_path, load_external_data=False).graph
    assert not any(tensor.dims for tensor in inner_tensors(outer.node) if len(tensor.raw_data) > 64)
    defined = {name for node in outer.node for name in node.output}
    inner = [name for name in names(pack) if name in defined]
    assert len(inner) == len(set(inner))
    for condition in (True, False):
        inputs = {**inputs_for({"x": (1, 16, 6, 6)}), "c": np.array(condition)}
        expected = answers(source, inputs)
        same(streamed(pack, inputs), expected, 1e-5, 1e-5)


def test_constants_in_bodies_of_bodies(tmp_path: Path) -> None:
    """ONNX Runtime saves these twice, as a node and as an initializer, and refuses what it saved."""
    model = parsed(
        """loops (float[1,8] x) => (float[1,8] y) {
            n = Constant<value = int64 {2}>()
            yes = Constant<value = bool {1}>()
            y = Loop(n, yes, x) <
                body = b (int64 i, bool go, float[1,8] s) => (bool again, float[1,8] t) {
                    again = Identity(go)
                    total = ReduceSum<keepdims=0>(s)
                    test = Cast<to=9>(total)
                    t = If(test) <
                        then_branch = t1 () => (float[1,8] p) {
                            k = Constant<value_float = 2.0>()
                            p = Mul(s, k)
                        },
                        else_branch = e1 () => (float[1,8] q) {
                            k = Constant<value = float {3.0}>()
                            q = Add(s, k)
                        }
                    >
                }
            >
        }"""
    )
    source = written(model, tmp_path / "m.onnx")
    inputs = inputs_for({"x": (1, 8)})
    same(streamed(compiled(source, tmp_path), inputs), answers(source, inputs), 1e-5, 1e-5)
