"""Which nodes a convolution takes along."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import helper

from models.graphs.activations import Function, function_of
from models.graphs.fusion import Fusion, Surroundings, fused_with
from models.graphs.nodes import reads

SHAPE = (1, 4, 8, 8)
BOUNDS = {"low": np.array(0.0, np.float32), "high": np.array(6.0, np.float32)}

Node = onnx.NodeProto


def node(operator: str, inputs: str, output: str, **attributes: float | str) -> Node:
    made = helper.make_node(operator, inputs.split(), [output])
    made.attribute.extend(helper.make_attribute(key, attributes[key]) for key in attributes)
    return made


def conv(inputs: str = "x w b", output: str = "t", **attributes: float | str) -> Node:
    return node(
        "Conv" if "activation" not in attributes else "FusedConv", inputs, output, **attributes
    )


def around(
    nodes: Sequence[Node],
    kept: str = "y",
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Surroundings:
    readers: dict[str, list[int]] = {}
    for index, item in enumerate(nodes):
        for name in reads(item):
            readers.setdefault(name, []).append(index)
    sizes = shapes or {}
    return Surroundings(
        nodes, readers, kept.split(), lambda name: sizes.get(name, SHAPE), BOUNDS.get
    )


def fused(*nodes: Node, index: int = 0, kept: str = "y") -> Fusion | None:
    return fused_with(around(nodes, kept), index)


@pytest.mark.parametrize(
    ("item", "function"),
    [
        (node("Relu", "t", "y"), Function("RELU")),
        (node("LeakyRelu", "t", "y", alpha=0.5), Function("LEAKY_RELU", 0.5)),
        (node("Clip", "t low high", "y"), Function("CLIP", 0.0, 6.0)),
        (node("Clip", "t", "y", min=-1.0), Function("CLIP", -1.0, float("inf"))),
        (node("HardSigmoid", "t", "y"), Function("HARD_SIGMOID", 0.2, 0.5)),
        (node("Gelu", "t", "y", approximate="tanh"), Function("GELU_TANH")),
        (node("Mish", "t", "y"), Function("MISH")),
    ],
)
def test_an_activation_of_one_node(item: Node, function: Function) -> None:
    found = fused(conv(), item)
    assert found == Fusion((0, 1), "y", function_of(item, BOUNDS.get))
    assert found is not None
    assert found.function is not None
    assert found.function.kind == function.kind
    parameters = (found.function.alpha, found.function.beta)
    assert parameters == pytest.approx((function.alpha, function.beta))


GROUPS = {
    "MISH": [node("Softplus", "t", "p"), node("Tanh", "p", "q"), node("Mul", "t q", "y")],
    "SILU": [node("Sigmoid", "t", "p"), node("Mul", "p t", "y")],
    "HARD_SWISH": [
        node("HardSigmoid", "t", "p", alpha=1 / 6, beta=0.5),
        node("Mul", "t p", "y"),
    ],
}


@pytest.mark.parametrize("kind", GROUPS)
def test_an_activation_of_several_nodes(kind: str) -> None:
    nodes = GROUPS[kind]
    found = fused(conv(), *nodes)
    assert found == Fusion(tuple(range(len(nodes) + 1)), "y", Function(kind))
    alone = fused(*nodes)
    assert alone == Fusion(tuple(range(len(nodes))), "y", Function(kind))


@pytest.mark.parametrize("kind", GROUPS)
def test_a_group_that_something_else_reads_is_none(kind: str) -> None:
    nodes = [*GROUPS[kind], node("Abs", "p", "z")]
    found = fused(conv(), *nodes, kept="y z")
    assert found is None
    assert fused(*nodes, kept="y z") is None
    assert fused(*GROUPS[kind], kept="y p") is None


def test_another_hard_sigmoid_is_no_hard_swish() -> None:
    nodes = [node("HardSigmoid", "t", "p"), node("Mul", "t p", "y")]
    assert fused(*nodes) is None


def test_a_sum_then_an_activation() -> None:
    found = fused(conv(), node("Add", "r t", "s"), node("Relu", "s", "y"))
    assert found == Fusion((0, 1, 2), "y", Function("RELU"), "r")


def test_an_activation_then_a_sum() -> None:
    found = fused(conv(), node("Relu", "t", "s"), node("Add", "s r", "y"))
    assert found == Fusion((0, 1, 2), "y", Function("RELU"), "r", residual_last=True)


def test_an_activation_a_sum_and_no_second_activation() -> None:
    nodes = [conv(), node("Relu", "t", "s"), node("Add", "s r", "u"), node("Relu", "u", "y")]
    assert fused(*nodes) == Fusion((0, 1, 2), "u", Function("RELU"), "r", residual_last=True)


def test_of_two_convolutions_the_later_one_takes_the_sum() -> None:
    nodes = [conv(), conv("x v b", "r"), node("Add", "t r", "s"), node("Relu", "s", "y")]
    assert fused(*nodes) is None
    assert fused(*nodes, index=1) == Fusion((1, 2, 3), "y", Function("RELU"), "t")


def test_a_sum_that_broadcasts_stays() -> None:
    nodes = [conv(), node("Add", "t r", "y")]
    assert fused_with(around(nodes, shapes={"r": (4, 1, 1)}), 0) is None


def test_what_others_read_stays_in_memory() -> None:
    nodes = [conv(), node("Relu", "t", "y"), node("Abs", "t", "z")]
    assert fused(*nodes, kept="y z") is None
    assert fused(conv(), node("Relu", "t", "y"), kept="t y") is None
    assert fused(conv(), node("Add", "t t", "y")) is None


def test_a_fused_convolution_takes_what_it_has_not() -> None:
    nodes = [conv(activation="Relu"), node("Add", "t r", "s"), node("Relu", "s", "y")]
    assert fused(*nodes) == Fusion((0, 1), "s", None, "r", residual_last=True)
    nodes[0] = conv("x w b z", activation="Relu")
    assert fused(*nodes) is None


def test_other_operators_take_an_activation_but_no_sum() -> None:
    norm = node("BatchNormalization", "x a b c d", "t")
    assert fused(norm, node("Relu", "t", "y")) == Fusion((0, 1), "y", Function("RELU"))
    assert fused(norm, node("Add", "t r", "y")) is None
    assert fused(node("Transpose", "x", "t"), node("Relu", "t", "y")) is None


def test_bounds_that_are_not_constant() -> None:
    assert function_of(node("Clip", "t x", "y"), BOUNDS.get) is None
    assert fused(conv(), node("Clip", "t x", "y")) is None
