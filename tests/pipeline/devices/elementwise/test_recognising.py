"""Chains as exporters write them become few steps; what is not known is left alone."""

import math

import numpy as np
import onnx
import onnx.parser
import pytest

from pipeline.devices.elementwise.one_pass import Wired, steps_of
from pipeline.devices.elementwise.pieces import PieceError, read_piece
from pipeline.devices.elementwise.programs import Program, Step, program_of

_NUMBERS: dict[str, float | tuple[float, float]] = {
    "pair": (1.0, 2.0),
    "half": 0.5,
    "one": 1.0,
    "three": 3.0,
    "six": 6.0,
    "zero": 0.0,
    "sixth": 1 / 6,
    "root": math.sqrt(2),
    "quick": 1.702,
}

# Nodes that make y of x (and z), which of the values in between are read elsewhere, and the steps.
CASES = {
    "mish": ("s = Softplus(x) t = Tanh(s) y = Mul(x, t)", "", ["mish 1"]),
    "mish, backwards": ("s = Softplus(x) t = Tanh(s) y = Mul(t, x)", "", ["mish 1"]),
    "mish by logarithm": (
        "e = Exp(x) f = Add(one, e) s = Log(f) t = Tanh(s) y = Mul(x, t)",
        "",
        ["mish 1"],
    ),
    "mish as the compiler says it": (
        "s = Sigmoid(x) t = Mul(s, s) h = HardSigmoid<alpha=0.5, beta=0.5>(t) d = Div(x, h)"
        "y = Sub(x, d)",
        "",
        ["mish -1"],
    ),
    "mish whose tanh is read elsewhere": ("s = Softplus(x) t = Tanh(s) y = Mul(x, t)", "t", None),
    "silu": ("s = Sigmoid(x) y = Mul(x, s)", "", ["silu 1"]),
    "silu with a factor": ("a = Mul(x, quick) s = Sigmoid(a) y = Mul(s, x)", "", ["silu 1.702"]),
    "silu, and its sigmoid": (
        "s = Sigmoid(x) y = Mul(x, s)",
        "s",
        ["sigmoid", "multiply", "copy"],
    ),
    "a product with the sigmoid of something else": (
        "s = Sigmoid(z) y = Mul(x, s)",
        "",
        ["sigmoid", "multiply"],
    ),
    "silu and a sum before and after": (
        "a = Add(x, z) s = Sigmoid(a) b = Mul(a, s) y = Add(z, b)",
        "",
        ["add", "silu 1", "add"],
    ),
    "two in a row": (
        "s = Sigmoid(x) a = Mul(x, s) t = Sigmoid(a) y = Mul(a, t)",
        "",
        ["silu 1", "silu 1"],
    ),
    "hard swish": (
        "a = Add(x, three) b = Clip(a, zero, six) c = Mul(x, b) y = Div(c, six)",
        "",
        ["hard_swish"],
    ),
    "hard swish, divided first": (
        "a = Add(three, x) b = Clip(a, zero, six) c = Div(b, six) y = Mul(x, c)",
        "",
        ["hard_swish"],
    ),
    "hard swish by hard sigmoid": (
        "a = HardSigmoid<alpha=0.16666667, beta=0.5>(x) y = Mul(a, x)",
        "",
        ["hard_swish"],
    ),
    "another hard sigmoid": (
        "a = HardSigmoid(x) y = Mul(a, x)",
        "",
        ["hard_sigmoid 0.2 0.5", "multiply"],
    ),
    "gelu": (
        "a = Div(x, root) e = Erf(a) g = Add(e, one) b = Mul(x, g) y = Mul(b, half)",
        "",
        ["gelu"],
    ),
    "gelu, halved first": (
        "h = Mul(x, half) a = Div(x, root) e = Erf(a) g = Add(one, e) y = Mul(h, g)",
        "",
        ["gelu"],
    ),
    "another function of erf": (
        "a = Div(x, six) e = Erf(a) g = Add(e, one) b = Mul(x, g) y = Mul(b, half)",
        "",
        ["divide_number 6", "erf", "add_number 1", "multiply", "multiply_number 0.5"],
    ),
    "bounds": ("a = Clip(x, zero, six) y = Relu(a)", "", ["clip 0 6", "clip 0 inf"]),
    "one bound": ("y = Clip(x, , six)", "", ["clip -inf 6"]),
    "a number before": (
        "a = Sub(x, three) y = Mul(half, a)",
        "",
        ["add_number -3", "multiply_number 0.5"],
    ),
    "a number less x": ("y = Sub(three, x)", "", None),
    "alone": (
        "a = Neg(x) b = LeakyRelu<alpha=0.1>(a) c = Tanh(b) d = HardSwish(c) e = Mish(d) y = Gelu(e)",
        "",
        ["negative", "leaky_relu 0.1", "tanh", "hard_swish", "mish 1", "gelu"],
    ),
    "gelu by tanh": ('y = Gelu<approximate="tanh">(x)', "", None),
    "a constant of several numbers": ("y = Mul(x, pair)", "", None),
    "what is not known": ("s = Sigmoid(x) y = Softsign(s)", "", None),
}


def wired(nodes: str) -> Wired:
    head = '<ir_version: 9, opset_import: ["" : 22]> m (float[n] x, float[n] z) => (float[n] y)'
    model = onnx.parser.parse_model(f"{head} {{ {nodes} }}")
    for name, number in _NUMBERS.items():
        tensor = onnx.numpy_helper.from_array(np.array(number, np.float32), name)
        model.graph.initializer.append(tensor)
    return Wired(model.SerializeToString(), ("x", "z"), ("y",))


def described(step: Step) -> str:
    numbers = [step.p, step.q] if step.q else [step.p] if step.p else []
    if step.operator == "clip":
        numbers = [step.p, step.q]
    return " ".join([step.operator, *(f"{number:.4g}" for number in numbers)])


@pytest.mark.parametrize("name", CASES)
def test_steps(name: str) -> None:
    nodes, kept, expected = CASES[name]
    names = frozenset({"y", *(f"0 {each}" for each in kept)})
    steps = steps_of([wired(nodes)], names)
    program = None if steps is None else program_of(steps, names)
    if expected is None:
        assert program is None
    else:
        assert program is not None
        assert [described(step) for step in program.steps] == expected
        assert program.results == names


@pytest.mark.parametrize("cut", [1, 7, 40, -1])
def test_bytes_that_are_no_piece(cut: int) -> None:
    graph = wired(CASES["mish"][0]).graph
    with pytest.raises(PieceError):
        read_piece(graph[:cut])
    assert steps_of([Wired(graph[:cut], ("x", "z"), ("y",))], frozenset("y")) is None


def test_more_than_the_library_takes_is_left_alone() -> None:
    names = [f"x{number}" for number in range(20)]
    steps = [Step("copy", (names[0],), "s0")]
    steps += [
        Step("add", (f"s{number - 1}", names[number]), f"s{number}") for number in range(1, 20)
    ]
    assert program_of(steps, {"s19"}) is None
    assert program_of(steps[:8], {"s7"}) is not None


def test_a_result_over_what_is_read_is_written_last() -> None:
    """x may lie where y does: what else reads x must have done so before."""
    steps = [Step("sigmoid", ("x",), "y"), Step("multiply", ("x", "y"), "z")]
    program = program_of(steps, {"y", "z"})
    assert isinstance(program, Program)
    assert [step.result for step in program.steps][-1] == "y"
    assert program.steps[-1].operator == "copy"
