"""Which nodes a convolution takes along."""

from collections.abc import Callable, Mapping

import numpy as np

from models.graphs.fusion import Fusion, Surroundings, fusions
from models.network.activations import Activation
from models.network.catalogue import read_operator
from models.network.fields import Array
from models.network.node import KnownTensors, NamedTensor, Node
from models.network.operators.reading import BatchNorm, Convolution, Map, Operator
from tests.examples import over

SHAPE = (1, 4, 8, 8)
CONSTANTS = {
    name: np.array(number, np.float32)
    for name, number in (
        *(("low", 0.0), ("high", 6.0), ("root", 2**0.5), ("one", 1.0), ("half", 0.5)),
        *(("three", 3.0), ("six", 6.0), ("alpha", 1.5)),
    )
}
RELU = Activation("relu")
VECTORS = dict.fromkeys("abcd", (4,))


def node(operator: str, inputs: str, output: str, **attributes: float | str) -> Node:
    return Node(operator, tuple(inputs.split()), (output,), attributes, 18)


def conv(inputs: str = "x w b", output: str = "t", **attributes: float | str) -> Node:
    operator = "com.microsoft.FusedConv" if "activation" in attributes else "Conv"
    return node(operator, inputs, output, **attributes)


def known(shapes: Mapping[str, tuple[int, ...]]) -> KnownTensors:
    def array(name: str) -> Array:
        return Array(dtype="float32", shape=shapes.get(name, SHAPE))

    return KnownTensors(array, CONSTANTS.get)


def fused(
    *nodes: Node,
    index: int = 0,
    kept: str = "y",
    may_add: Callable[[int, str], bool] = lambda index, name: True,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Fusion | None:
    """Return what node ``index`` chooses where it is the first one asked."""
    around = Surroundings(nodes, kept.split(), known(shapes or {}), may_add)
    heads = [index, *(other for other in range(len(nodes)) if other != index)]
    return fusions(around, heads).get(index)


@over(
    "item, activation",
    [
        (node("Relu", "t", "y"), RELU),
        (node("LeakyRelu", "t", "y", alpha=0.5), Activation("leaky_relu", 0.5)),
        (node("Clip", "t low high", "y"), Activation("clip", 0.0, 6.0)),
        (node("Clip", "t", "y", min=-1.0), Activation("clip", -1.0, float("inf"))),
        (node("HardSigmoid", "t", "y"), Activation("hard_sigmoid", 0.2, 0.5)),
        (node("Gelu", "t", "y", approximate="tanh"), Activation("gelu_tanh")),
        (node("Mish", "t", "y"), Activation("mish", 1.0)),
        (node("Sqrt", "t", "y"), Activation("sqrt")),
    ],
)
def test_an_activation_of_one_node(item: Node, activation: Activation) -> None:
    assert fused(conv(), item) == Fusion((0, 1), "y", activation)


GROUPS = {
    "mish": (
        Activation("mish", 1.0),
        [
            node("Softplus", "t", "p"),
            node("Tanh", "p", "q"),
            node("Mul", "t q", "y"),
        ],
    ),
    "mish of -x": (
        Activation("mish", -1.0),
        [
            node("Sigmoid", "t", "p"),
            node("Mul", "p p", "q"),
            node("HardSigmoid", "q", "r", alpha=0.5, beta=0.5),
            node("Div", "t r", "s"),
            node("Sub", "t s", "y"),
        ],
    ),
    "silu": (Activation("silu", 1.0), [node("Sigmoid", "t", "p"), node("Mul", "p t", "y")]),
    "silu of 1.5 x": (
        Activation("silu", 1.5),
        [
            node("Mul", "t alpha", "p"),
            node("Sigmoid", "p", "q"),
            node("Mul", "q t", "y"),
        ],
    ),
    "hard swish": (
        Activation("hard_swish"),
        [
            node("HardSigmoid", "t", "p", alpha=1 / 6, beta=0.5),
            node("Mul", "t p", "y"),
        ],
    ),
    "hard swish of Clip": (
        Activation("hard_swish"),
        [
            node("Add", "t three", "p"),
            node("Clip", "p low high", "q"),
            node("Mul", "q t", "r"),
            node("Div", "r six", "y"),
        ],
    ),
    "gelu": (
        Activation("gelu"),
        [
            node("Div", "t root", "p"),
            node("Erf", "p", "q"),
            node("Add", "q one", "r"),
            node("Mul", "t r", "s"),
            node("Mul", "s half", "y"),
        ],
    ),
}


@over("kind", GROUPS)
def test_an_activation_of_several_nodes(kind: str) -> None:
    activation, nodes = GROUPS[kind]
    assert fused(conv(), *nodes) == Fusion(tuple(range(len(nodes) + 1)), "y", activation)
    assert fused(*nodes) == Fusion(tuple(range(len(nodes))), "y", activation, x="t")


@over("kind", GROUPS)
def test_a_group_that_something_else_reads_is_none(kind: str) -> None:
    _, group = GROUPS[kind]
    nodes = [*group, node("Abs", "p", "z")]
    found = fused(conv(), *nodes, kept="y z")
    assert found is None
    assert fused(*nodes, kept="y z") is None
    assert fused(*group, kept="y p") is None


def test_another_hard_sigmoid_is_no_hard_swish() -> None:
    nodes = [node("HardSigmoid", "t", "p"), node("Mul", "t p", "y")]
    assert fused(*nodes) is None


def test_a_sum_then_an_activation() -> None:
    found = fused(conv(), node("Add", "r t", "s"), node("Relu", "s", "y"))
    assert found == Fusion((0, 1, 2), "y", RELU, "r")


def test_an_activation_then_a_sum() -> None:
    found = fused(conv(), node("Relu", "t", "s"), node("Add", "s r", "y"))
    assert found == Fusion((0, 1, 2), "y", RELU, "r", adds_last=True)


def test_an_activation_a_sum_and_no_second_activation() -> None:
    nodes = [conv(), node("Relu", "t", "s"), node("Add", "s r", "u"), node("Relu", "u", "y")]
    assert fused(*nodes) == Fusion((0, 1, 2), "u", RELU, "r", adds_last=True)


def test_of_two_convolutions_the_later_one_takes_the_sum() -> None:
    nodes = [conv(), conv("x v b", "r"), node("Add", "t r", "s"), node("Relu", "s", "y")]
    makers = {item.output: index for index, item in enumerate(nodes)}

    def made_before(index: int, name: str) -> bool:
        return makers.get(name, -1) < index

    assert fused(*nodes, may_add=made_before) is None
    found = Fusion((1, 2, 3), "y", RELU, "t")
    assert fused(*nodes, index=1, may_add=made_before) == found
    # Where order is free the first one that is asked takes it, and the other one stays alone.
    around = Surroundings(nodes, ["y"], known({}), lambda index, name: True)
    assert fusions(around, [1, 0, 2, 3]) == {1: found}
    assert fusions(around, [0, 1, 2, 3]) == {0: Fusion((0, 2, 3), "y", RELU, "r")}


def test_a_sum_that_broadcasts_stays() -> None:
    assert fused(conv(), node("Add", "t r", "y"), shapes={"r": (4, 1, 1)}) is None


def test_nodes_that_take_no_part_need_what_they_read() -> None:
    nodes = [conv(), node("Relu", "t", "s"), node("Tanh", "s", "y")]
    around = Surroundings(nodes, ["y"], known({}), lambda index, name: True)
    assert fusions(around, [0, 1]) == {0: Fusion((0, 1), "s", RELU)}
    assert fusions(around, [0, 2]) == {}
    group = GROUPS["silu"][1]
    around = Surroundings(group, ["y"], known({}), lambda index, name: True)
    assert fusions(around, [1]) == {}


def test_what_others_read_stays_in_memory() -> None:
    nodes = [conv(), node("Relu", "t", "y"), node("Abs", "t", "z")]
    assert fused(*nodes, kept="y z") is None
    assert fused(conv(), node("Relu", "t", "y"), kept="t y") is None
    assert fused(conv(), node("Add", "t t", "y")) is None


def test_a_fused_convolution_takes_what_it_has_not() -> None:
    nodes = [conv(activation="Relu"), node("Add", "t r", "s"), node("Relu", "s", "y")]
    assert fused(*nodes) == Fusion((0, 1), "s", None, "r", adds_last=True)
    nodes[0] = conv("x w b z", activation="Relu")
    assert fused(*nodes) is None


def test_other_operators_take_an_activation_but_no_sum() -> None:
    norm = node("BatchNormalization", "x a b c d", "t")
    assert fused(norm, node("Relu", "t", "y"), shapes=VECTORS) == Fusion((0, 1), "y", RELU)
    assert fused(norm, node("Add", "t r", "y"), shapes=VECTORS) is None
    for operator in ("Add", "Sub", "Max", "MatMul"):
        first = node(operator, "x r", "t")
        assert fused(first, node("Relu", "t", "y")) == Fusion((0, 1), "y", RELU)
    assert fused(node("Transpose", "x", "t"), node("Relu", "t", "y")) is None


def test_bounds_that_are_not_constant() -> None:
    assert fused(conv(), node("Clip", "t x", "y")) is None


def _value(name: str) -> NamedTensor:
    return NamedTensor(name=name, dtype="float32", shape=SHAPE)


def _alone(first: Node) -> Operator:
    return read_operator(first, known({**VECTORS, "w": (4, 4, 1, 1)}))


def test_what_is_fused_is_one_operator() -> None:
    first = _alone(conv())
    assert isinstance(first, Convolution)
    fusion = fused(conv(), node("Add", "r t", "s"), node("Relu", "s", "y"))
    assert fusion is not None
    found = fusion.operator(first, _value)
    assert isinstance(found, Convolution)
    assert (found.y, found.addend, found.adds_last) == (_value("y"), _value("r"), False)
    assert found.activation == RELU
    assert (found.x, found.weight, found.bias) == (first.x, first.weight, first.bias)


def test_an_activation_that_is_there_comes_before_what_is_added() -> None:
    nodes = conv(activation="Relu"), node("Add", "t r", "y")
    fusion = fused(*nodes)
    assert fusion is not None
    found = fusion.operator(_alone(nodes[0]), _value)
    assert isinstance(found, Convolution)
    assert (found.activation, found.addend, found.adds_last) == (RELU, _value("r"), True)


def test_a_norm_and_an_activation_alone_are_one_operator() -> None:
    norm = node("BatchNormalization", "x a b c d", "t")
    fusion = fused(norm, node("Relu", "t", "y"), shapes=VECTORS)
    assert fusion is not None
    found = fusion.operator(_alone(norm), _value)
    assert isinstance(found, BatchNorm)
    assert (found.y, found.activation) == (_value("y"), RELU)
    _, nodes = GROUPS["gelu"]
    fusion = fused(*nodes)
    assert fusion is not None
    mapped = Map(function=Activation("gelu"), x=_value("t"), y=_value("y"))
    assert fusion.operator(_alone(nodes[0]), _value) == mapped
