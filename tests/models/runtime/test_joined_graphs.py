"""Pieces in one graph: they run in their order whatever lies where, in one session or one by one."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.runtime.joined_graphs import (
    JoinError,
    can_join,
    is_one,
    join_graphs,
    runs_in_order,
)
from models.runtime.sessions import join_options
from models.runtime.wire import WireError
from pipeline.devices.base import DeviceError
from pipeline.devices.cpu import CpuDevice
from tests.examples import over

_SLOTS, _LENGTH = 4, 8
_OPERATORS = ("Add", "Sub", "Mul", "Max")
#: Operator, its two inputs and its output: slots of one memory.
Step = tuple[str, int, int, int]
_STEPS = st.tuples(st.sampled_from(_OPERATORS), *[st.integers(0, _SLOTS - 1) for _ in range(3)])


def piece(nodes: Sequence[onnx.NodeProto], inputs: int, opset: int = 17) -> bytes:
    """Return a piece as packs hold them: ports x0, x1, ... and y0."""
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None])
        for name in (*(f"x{index}" for index in range(inputs)), "y0")
    ]
    two = numpy_helper.from_array(np.array([2.0], np.float32), "t9")
    graph = helper.make_graph(list(nodes), "", ports[:-1], ports[-1:], [two])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())


def doubled(operator: str) -> bytes:
    """Return a piece with a value of its own and a constant: 2 (x0 op x1)."""
    first = helper.make_node(operator, ["x0", "x1"], ["t5"])
    return piece([first, helper.make_node("Mul", ["t5", "t9"], ["y0"])], 2)


PIECES = {operator: doubled(operator) for operator in _OPERATORS}


def memory() -> NDArray[np.float32]:
    return np.random.default_rng(2).standard_normal((_SLOTS, _LENGTH), np.float32)


@settings(max_examples=15, deadline=None)
@given(st.lists(_STEPS, min_size=2, max_size=24))
def test_pieces_run_in_order_over_memory_that_they_share(steps: list[Step]) -> None:
    device, slots, separate = CpuDevice(1), memory(), memory()
    kernel = device.join([PIECES[operator] for operator, *_ in steps])
    inputs = [slots[index] for _, *read, _ in steps for index in read]
    kernel.bind(inputs, [slots[target] for *_, target in steps])()
    for operator, first, second, target in steps:
        operands = [separate[first], separate[second]]
        device.load(PIECES[operator]).bind(operands, [separate[target]])()
    assert slots.tobytes() == separate.tobytes()


#: What ONNX Runtime makes other nodes of when it loads a graph, or runs before nodes that stand before it.
_ALTERED = {
    "HardSwish": [helper.make_node("HardSwish", ["x0"], ["y0"])],
    "Mish": [helper.make_node("Mish", ["x0"], ["y0"])],
    "Shape": [
        helper.make_node("Shape", ["x0"], ["t5"]),
        helper.make_node("Cast", ["t5"], ["t6"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x0", "t6"], ["y0"]),
    ],
    "CastLike": [
        helper.make_node("Abs", ["x0"], ["t5"]),
        helper.make_node("CastLike", ["t5", "x0"], ["y0"]),
    ],
}
_UNARY = {name: piece(nodes, 1, opset=18) for name, nodes in _ALTERED.items()}


@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(list(_UNARY)), *[st.integers(0, _SLOTS - 1)] * 2),
        min_size=2,
        max_size=12,
    )
)
def test_what_loading_alters_runs_in_order_all_the_same(steps: list[tuple[str, int, int]]) -> None:
    device, slots, separate = CpuDevice(1), memory(), memory()
    kernel = device.join([_UNARY[name] for name, *_ in steps])
    kernel.bind([slots[read] for _, read, _ in steps], [slots[target] for *_, target in steps])()
    for name, read, target in steps:
        device.load(_UNARY[name]).bind([separate[read]], [separate[target]])()
    assert slots.tobytes() == separate.tobytes()


def dequantised() -> bytes:
    """Return a piece that gives numbers x0 (bytes) stands for, and reads them: y0, y1 = their double."""
    nodes = [
        helper.make_node("DequantizeLinear", ["x0", "t9"], ["y0"]),
        helper.make_node("Add", ["y0", "y0"], ["y1"]),
    ]
    ports = [
        helper.make_tensor_value_info(name, kind, [None])
        for name, kind in (
            ("x0", TensorProto.UINT8),
            ("y0", TensorProto.FLOAT),
            ("y1", TensorProto.FLOAT),
        )
    ]
    scale = numpy_helper.from_array(np.array(0.5, np.float32), "t9")
    graph = helper.make_graph(nodes, "", ports[:1], ports[1:], [scale])
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())


@pytest.mark.parametrize("copied", [False, True])
def test_a_piece_reads_what_it_gives_before_a_later_one_writes_there(
    copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes and double lie in one memory: where ONNX Runtime copies DequantizeLinear, both are wrong."""
    if copied:  # as other versions may, whatever they are asked for
        monkeypatch.setattr("models.runtime.sessions._ALTERS_NOTHING", {})
    graph, device = dequantised(), CpuDevice(1)
    values = np.arange(_LENGTH, dtype=np.float32)
    for kernel in (device.join([graph, graph]), None):
        first, second = (np.zeros(_LENGTH, np.float32) for _ in range(2))
        shared = values.copy()
        source = shared.view(np.uint8)[:_LENGTH]
        source[:] = np.arange(_LENGTH)
        other = np.full(_LENGTH, 3, np.uint8)
        if kernel is not None:
            kernel.bind([source, other], [first, second, first, shared])()
        else:
            for read, target in ((source, second), (other, shared)):
                device.load(graph).bind([read], [first, target])()
        assert np.array_equal(first, np.full(_LENGTH, 1.5, np.float32))
        assert np.array_equal(second, np.arange(_LENGTH, dtype=np.float32))
        assert np.array_equal(shared, np.full(_LENGTH, 3, np.float32))


def test_nodes_run_as_they_stand_in_the_graph(tmp_path: Path) -> None:
    """By the profile that ONNX Runtime writes of a run."""
    graphs = [dequantised(), PIECES["Mul"], PIECES["Add"], dequantised()]
    fused = onnx.load_from_string(join_graphs(graphs))
    for index, node in enumerate(fused.graph.node):
        node.name = f"n{index}"
    options = join_options()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "run")
    session = ort.InferenceSession(fused.SerializeToString(), options)
    kinds = {"tensor(float)": np.float32, "tensor(uint8)": np.uint8}
    feeds = {port.name: np.ones(_LENGTH, kinds[port.type]) for port in session.get_inputs()}
    session.run(None, feeds)
    events = json.loads(Path(session.end_profiling()).read_text())
    order = [
        event["name"].removesuffix("_kernel_time")
        for event in sorted(events, key=lambda event: event["ts"])
        if event["name"].endswith("_kernel_time")
    ]
    assert order == [node.name for node in fused.graph.node]


def test_order_is_defined_where_the_nodes_are_those_of_the_graph() -> None:
    graph = onnx.load_from_string(join_graphs([PIECES["Add"], PIECES["Mul"]]))
    altered = [onnx.ModelProto.FromString(graph.SerializeToString()) for _ in range(4)]
    written = list(graph.graph.node)
    del altered[0].graph.node[:]
    altered[0].graph.node.extend(reversed(written))  # in which order they were saved says nothing
    del altered[1].graph.node[-1]
    altered[2].graph.node.append(helper.make_node("Identity", ["0x0"], ["copy"]))
    altered[3].graph.node[1].op_type = "Sub"
    loaded = [model.SerializeToString() for model in altered]
    assert [runs_in_order(graph.SerializeToString(), model_bytes) for model_bytes in loaded] == [
        *(True, False, False, False)
    ]
    first = piece([helper.make_node("Size", ["x0"], ["y0"])], 1)
    assert not runs_in_order(first, first)


def test_equal_runs_are_one_kernel() -> None:
    device = CpuDevice(1)
    first = device.join([PIECES["Add"], PIECES["Mul"]])
    assert device.join([PIECES["Add"], PIECES["Mul"]]) is first
    assert device.join([PIECES["Mul"], PIECES["Add"]]) is not first


@over(
    "node, joins",
    [
        (helper.make_node("Relu", ["x0"], ["y0"]), True),
        (helper.make_node("QuickGelu", ["x0"], ["y0"], domain="com.microsoft"), True),
        (helper.make_node("Conv", ["x0"], ["y0"], domain="com.microsoft.nchwc"), True),
        (helper.make_node("QGemm", ["x0"], ["y0"], domain="com.microsoft"), True),
        # It would run before all others, and write where one of them still reads.
        (helper.make_node("Shape", ["x0"], ["y0"]), False),
        (helper.make_node("Abs", ["x0"], ["y0"]), True),
        (helper.make_node("Reciprocal", ["x0"], ["y0"]), True),
        (helper.make_node("Sum", ["x0"], ["y0"]), True),
        # ONNX Runtime may put nodes in its place, or leave it out.
        (helper.make_node("HardSwish", ["x0"], ["y0"]), False),
        (helper.make_node("Cast", ["x0"], ["y0"], to=1), False),
        (helper.make_node("Relu", ["x0"], ["y0"], domain="elsewhere"), False),
    ],
)
def test_what_joins(node: onnx.NodeProto, joins: bool) -> None:
    assert can_join(piece([node], 1)) is joins


def test_what_is_one_kernel() -> None:
    assert is_one(piece([helper.make_node("Relu", ["x0"], ["y0"])], 1))
    assert not is_one(PIECES["Add"])


@over("data", [b"", b"\x00", b"\xff" * 20, PIECES["Add"][:-3]])
def test_what_is_no_graph_does_not_join(data: bytes) -> None:
    assert not can_join(data)
    with pytest.raises((JoinError, WireError)):
        join_graphs([PIECES["Add"], data])
    with pytest.raises(DeviceError):
        CpuDevice(1).join([PIECES["Add"], data])


def test_pieces_of_different_versions_do_not_join() -> None:
    other = piece([helper.make_node("Relu", ["x0"], ["y0"])], 1, opset=16)
    with pytest.raises(JoinError, match="versions"):
        join_graphs([PIECES["Add"], other])
