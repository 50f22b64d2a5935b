"""Pieces in one graph: they run in their order whatever lies where, and only kernels are joined."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.runtime.joined_graphs import JoinError, can_join, is_one, join_graphs
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
        for name in (*(f"x{number}" for number in range(inputs)), "y0")
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
    device, slots, apart = CpuDevice(1), memory(), memory()
    kernel = device.join([PIECES[operator] for operator, *_ in steps])
    inputs = [slots[number] for _, *read, _ in steps for number in read]
    kernel.bind(inputs, [slots[target] for *_, target in steps])()
    for operator, first, second, target in steps:
        held = [apart[first], apart[second]]
        device.load(PIECES[operator]).bind(held, [apart[target]])()
    assert slots.tobytes() == apart.tobytes()


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
        # ONNX Runtime may put nodes in its place.
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
