"""Rewritten operators compute the same, and nothing else is rewritten."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from models.compiler.optimising.rewrite import RewriteActivations
from models.graphs.graph import Graph
from models.graphs.text import from_text
from models.graphs.writer import model_of
from tests.examples import over

HEAD = '<ir_version: 9, opset_import: ["" : 18]> g (float[n] x) => '
MISH = "y = Mish(x)"
PARTS = "a = Softplus(x)\n b = Tanh(a)\n y = Mul(x, b)"
REVERSED = "a = Softplus(x)\n b = Tanh(a)\n y = Mul(b, x)"
EXPONENTIALS = "e = Exp(x)\n a = Add(one, e)\n b = Log(a)\n c = Tanh(b)\n y = Mul(x, c)"


def graph(body: str, outputs: str = "(float[n] y)") -> Graph:
    return from_text(f"{HEAD}{outputs} {{ {body} }}")


def operators(of: Graph) -> list[str]:
    return [node.operator for node in of.nodes]


def run(of: Graph, x: np.ndarray) -> list[np.ndarray]:
    model = model_of(of)
    onnx.checker.check_model(model)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    answer: list[np.ndarray] = session.run(None, {"x": x})
    return answer


def test_mish_of_exponentials() -> None:
    original = graph(EXPONENTIALS, "(float[n] y) <float one = {1}>")
    x = np.linspace(-20, 20, 81, dtype=np.float32)
    exact = run(original, x)[0]
    rewritten = RewriteActivations(original).run()
    assert operators(rewritten) == ["Neg", "Sigmoid", "Mul", "HardSigmoid", "Div", "Sub"]
    np.testing.assert_allclose(run(rewritten, x)[0], exact, rtol=1e-5, atol=1e-5)


VECTORS = arrays.arrays(np.float32, st.integers(1, 40), elements=st.floats(-1e4, 1e4, width=32))


@pytest.mark.parametrize("body", [MISH, PARTS, REVERSED])
@given(x=VECTORS)
def test_mish_is_mish(body: str, x: np.ndarray) -> None:
    rewritten = RewriteActivations(graph(body)).run()
    assert operators(rewritten) == ["Neg", "Sigmoid", "Mul", "HardSigmoid", "Div", "Sub"]
    exact = x * np.tanh(np.logaddexp(0, x.astype(np.float64)))
    np.testing.assert_allclose(
        run(rewritten, x)[0], exact, rtol=1e-6, atol=1e-6 * max(1, abs(x).max())
    )


def test_a_transposed_convolution_has_negative_weights() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[1,2,3,3] x) => (float[1,2,5,5] y)
        <float[2] b = {0.5, -2}> {
            c = ConvTranspose(x, w, b)
            y = Mish(c)
        }"""
    random = np.random.default_rng(0)
    original = from_text(text)
    weights = random.standard_normal((2, 2, 3, 3)).astype(np.float32)
    original = replace(original, constants={**original.constants, "w": weights})
    x = random.standard_normal((1, 2, 3, 3)).astype(np.float32)
    expected = run(original, x)[0]
    rewritten = RewriteActivations(original).run()
    assert operators(rewritten)[:4] == ["Neg", "Neg", "ConvTranspose", "Sigmoid"]
    np.testing.assert_allclose(run(rewritten, x)[0], expected, atol=1e-5)


CELU = ["Min", "Div", "Exp", "Sub", "Mul", "Max"]


@pytest.mark.parametrize(
    "body",
    [
        *("y = Celu<alpha=0.7>(x)", "a = Div(x, p)\n b = Elu(a)\n y = Mul(p, b)"),
        "a = Div(x, p)\n b = Elu<alpha=1.0>(a)\n y = Mul(b, p)",
    ],
)
@given(x=VECTORS)
def test_celu_is_celu(body: str, x: np.ndarray) -> None:
    rewritten = RewriteActivations(graph(body, "(float[n] y) <float p = {0.7}>")).run()
    kinds = [name for name in operators(rewritten) if name != "Constant"]
    assert kinds == CELU
    exact = np.where(x < 0, 0.7 * np.expm1(np.minimum(x, 0) / 0.7), x)
    np.testing.assert_allclose(run(rewritten, x)[0], exact, rtol=1e-6, atol=1e-7)


@over("alpha", ["-0.7", '"s"', "[1.0]"])
def test_celu_of_no_positive_number_stays(alpha: str) -> None:
    original = graph(f"y = Celu<alpha={alpha}>(x)")
    assert RewriteActivations(original).run() is original


@pytest.mark.parametrize("kind", ["Celu", "Mish"])
def test_floats_of_16_bits(kind: str) -> None:
    text = f"""<ir_version: 9, opset_import: ["" : 28]>
        g (float16[n] x) => (float16[n] y) {{ a = Neg(x)\n y = {kind}(a) }}"""
    original, x = from_text(text), np.linspace(-9, 9, 37, dtype=np.float16)
    rewritten = RewriteActivations(original).run()
    np.testing.assert_allclose(run(rewritten, x)[0], run(original, x)[0], rtol=0.01, atol=0.02)


@over(
    "body, outputs",
    [
        ("a = Softplus(x)\n b = Tanh(a)\n y = Mul(x, b)", "(float[n] y, float[n] b)"),
        ("a = Softplus(x)\n b = Tanh(a)\n z = Mul(x, b)\n y = Add(z, a)", "(float[n] y)"),
        ("c = Abs(x)\n a = Softplus(c)\n b = Tanh(a)\n y = Mul(x, b)", "(float[n] y)"),
        ("a = Softplus(x)\n b = Sigmoid(a)\n y = Mul(x, b)", "(float[n] y)"),
        ("a = Relu(x)\n b = Tanh(a)\n y = Mul(x, b)", "(float[n] y)"),
    ],
)
def test_what_is_no_mish_stays(body: str, outputs: str) -> None:
    original = graph(body, outputs)
    assert RewriteActivations(original).run() is original


def test_two_in_a_row_and_names_that_are_taken() -> None:
    x = np.linspace(-5, 5, 11, dtype=np.float32)
    original = graph('z = Mish(x)\n w = Mish(z)\n ["w/Sub"] v = Relu(w)\n y = Mish(v)')
    expected, rewritten = run(original, x)[0], RewriteActivations(original).run()
    assert len({node.name for node in rewritten.nodes}) == len(rewritten.nodes)
    np.testing.assert_allclose(run(rewritten, x)[0], expected, atol=1e-6)
