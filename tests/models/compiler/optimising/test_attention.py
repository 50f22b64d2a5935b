"""Each spelling of attention becomes one operator, which computes the same; what is none stays."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from models.compiler.optimising.attention import FindAttention
from models.graphs.graph import Graph
from models.graphs.reader import graph_from
from models.graphs.text import from_text
from models.graphs.writer import model_of
from models.network.names import Op
from tests.examples import over

IMAGES, HEADS, QUERIES, KEYS, HEAD = 2, 3, 5, 7, 4
Q, K, T = "float[2,3,5,4] q", "float[2,3,7,4] k", "float[2,3,4,7] t"
V, Y = "float[2,3,7,4] v", "float[2,3,5,4] y"
CONSTANTS = "float two = {2.0}, float zero = {0.0}, float hidden = {-1e38}"

#: By what they say: what comes in front of the scores s, of which p becomes, and their inputs.
SPELLINGS = {
    "plain": ("s = MatMul(q, t) p = Softmax(s)", T),
    "scaled queries": ("a = Mul(q, two) s = MatMul(a, t) p = Softmax(s)", T),
    "scaled keys": ("a = Div(t, two) s = MatMul(q, a) p = Softmax(s)", T),
    "both scaled": ("a = Mul(q, two) b = Mul(two, t) s = MatMul(a, b) p = Softmax(s)", T),
    "scaled scores": ("a = MatMul(q, t) s = Div(a, two) p = Softmax(s)", T),
    "turned keys": ("t = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, t) p = Softmax(s)", K),
    "added": ("s = MatMul(q, t) a = Add(s, m) p = Softmax(a)", f"{T}, float[2,1,5,7] m"),
    "added of keys": ("s = MatMul(q, t) a = Add(m, s) p = Softmax(a)", f"{T}, float[2,1,1,7] m"),
    "two added": (
        "s = MatMul(q, t) a = Add(s, m) b = Add(a, n) p = Softmax(b)",
        f"{T}, float[1,3,5,7] m, float[2,1,5,7] n",
    ),
    "chosen": (
        "s = MatMul(q, t) a = Where(c, s, hidden) p = Softmax(a)",
        f"{T}, bool[2,1,1,7] c",
    ),
    "hidden": (
        "s = MatMul(q, t) a = Where(c, hidden, s) p = Softmax(a)",
        f"{T}, bool[5,7] c",
    ),
    "guarded": (
        "s = MatMul(q, t) a = Add(s, m) w = Softmax(a) n = IsNaN(w) p = Where(n, zero, w)",
        f"{T}, float[2,1,5,7] m",
    ),
}
ATTENTIONS = {
    "heads": ("y = Attention(q, k, v)", f"{Q}, {K}, {V}", Y),
    "scale": ("y = Attention<scale = 0.3>(q, k, v)", f"{Q}, {K}, {V}", Y),
    "mask": ("y = Attention(q, k, v, m)", f"{Q}, {K}, {V}, float[5,7] m", Y),
    "choice": ("y = Attention(q, k, v, c)", f"{Q}, {K}, {V}, bool[2,1,5,7] c", Y),
    "causal": ("y = Attention<is_causal = 1>(q, q, q)", Q, Y),
    "tokens": (
        "y = Attention<q_num_heads = 3, kv_num_heads = 3>(q, k, k)",
        "float[2,5,12] q, float[2,7,12] k",
        "float[2,5,12] y",
    ),
}


def graph(body: str, inputs: str, output: str, opset: int = 23, constants: str = "") -> Graph:
    text = f'<ir_version: 9, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    read = from_text(f"{text} g ({inputs}) => ({output}) <{CONSTANTS}{constants}> {{ {body} }}")
    return with_types(read)


def with_types(read: Graph) -> Graph:
    """Return ``read`` with what ONNX infers of its values."""
    inferred = onnx.shape_inference.infer_shapes(model_of(read), strict_mode=True)
    inferred_types = {value.name: value for value in inferred.graph.value_info}
    probe = model_of(read)
    probe.graph.output.extend(inferred_types.values())
    return replace(read, values={**graph_from(probe.SerializeToString()).values, **read.values})


def drawn(of: Graph) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(3)
    arrays = {}
    for name in of.inputs:
        shape = of.values[name].shape
        if of.values[name].dtype == "bool":
            arrays[name] = generator.integers(0, 2, shape).astype(bool)
            arrays[name][..., 0] = name == "c" and of.nodes[-1].operator == Op.Attention
        else:
            arrays[name] = generator.standard_normal(shape).astype(np.float32)
    return arrays


def computed(of: Graph, inputs: dict[str, np.ndarray]) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        model_of(of).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (result,) = session.run(None, inputs)
    return np.asarray(result)


def becomes_one(original: Graph) -> Graph:
    rewritten = FindAttention(original).run()
    operators = [node.operator for node in rewritten.nodes]
    assert operators.count(Op.MultiHeadAttention) == 1
    assert not {Op.Softmax, Op.MatMul, Op.Attention} & set(operators)
    inputs = drawn(original)
    expected = computed(original, inputs)
    np.testing.assert_allclose(computed(rewritten, inputs), expected, rtol=1e-5, atol=1e-5)
    return rewritten


@over("name", SPELLINGS)
def test_products_around_a_softmax(name: str) -> None:
    body, inputs = SPELLINGS[name]
    becomes_one(graph(f"{body} y = MatMul(p, v)", f"{Q}, {inputs}, {V}", Y))


@pytest.mark.parametrize(("lowest", "count"), [(0.0, 3), (-1.0, 6)])
def test_a_constant_mask_that_hides_nothing_is_no_input(lowest: float, count: int) -> None:
    read = graph(
        "s = MatMul(q, t) a = Add(s, m) p = Softmax(a) y = MatMul(p, v)",
        f"{Q}, {T}, {V}, float[1,1,5,7] m",
        Y,
    )
    mask = np.zeros((1, 1, 5, 7), np.float32)
    mask[..., 3] = lowest
    original = replace(
        read,
        inputs=tuple(name for name in read.inputs if name != "m"),
        values={name: read.values[name] for name in read.values if name != "m"},
        constants={**read.constants, "m": mask},
    )
    (attention,) = (
        node for node in becomes_one(original).nodes if node.operator == Op.MultiHeadAttention
    )
    assert len(attention.inputs) == count


@over("name", ATTENTIONS)
@over("opset", [23, 24])
def test_attention_of_onnx(name: str, opset: int) -> None:
    becomes_one(graph(*ATTENTIONS[name], opset))


def test_a_query_that_a_mask_leaves_nothing_is_zero_where_it_was() -> None:
    body, inputs = SPELLINGS["guarded"]
    original = graph(f"{body} y = MatMul(p, v)", f"{Q}, {inputs}, {V}", Y)
    arrays = drawn(original)
    arrays["m"][1, 0, 2] = -np.inf
    result = computed(FindAttention(original).run(), arrays)
    assert not result[1, :, 2].any()
    np.testing.assert_allclose(result, computed(original, arrays), rtol=1e-5, atol=1e-5)


@over("name, hidden", [("mask", -np.inf), ("choice", False)])
def test_a_query_that_attention_of_onnx_masks_wholly_is_zero(name: str, hidden: float) -> None:
    original = graph(*ATTENTIONS[name])
    arrays = drawn(original)
    arrays["m" if name == "mask" else "c"][..., 2, :] = hidden
    result = computed(FindAttention(original).run(), arrays)
    assert not result[:, :, 2].any()
    np.testing.assert_allclose(result, computed(original, arrays), rtol=1e-5, atol=1e-5)


TOKENS = """
    a = Reshape(x, split) q = Transpose<perm = [0, 2, 1, 3]>(a)
    b = Reshape(z, split) {keys}
    d = Reshape(w, split) v = Transpose<perm = [0, 2, 1, 3]>(d)
    s = MatMul(q, t) p = Softmax(s) h = MatMul(p, v)
    o = Transpose<perm = [0, 2, 1, 3]>(h) y = Reshape(o, flat)
"""
ORDERS = {
    "at once": "t = Transpose<perm = [0, 2, 3, 1]>(b)",
    "in two": "c = Transpose<perm = [0, 2, 1, 3]>(b) t = Transpose<perm = [0, 1, 3, 2]>(c)",
    "through three axes": """c = Transpose<perm = [0, 2, 1, 3]>(b) e = Reshape(c, three)
        f = Transpose<perm = [0, 2, 1]>(e) t = Reshape(f, four)""",
}


@over("name", ORDERS)
def test_no_transposed_tensor_is_left_between_dense_layers(name: str) -> None:
    lengths = """int64[4] split = {2, 5, 3, 4}, int64[3] flat = {2, 5, 12},
        int64[3] three = {6, 5, 4}, int64[4] four = {2, 3, 4, 5}"""
    text = '<ir_version: 9, opset_import: ["" : 20]>'
    inputs = ", ".join(f"float[2,5,12] {name}" for name in "xzw")
    body = TOKENS.format(keys=ORDERS[name])
    source = from_text(f"{text} g ({inputs}) => (float[2,5,12] y) <{lengths}> {{ {body} }}")
    rewritten = becomes_one(with_types(source))
    assert Op.Transpose not in {node.operator for node in rewritten.nodes}


@pytest.mark.parametrize(
    "body",
    [
        "s = MatMul(q, t) p = Softmax<axis = 2>(s) y = MatMul(p, v)",
        "s = MatMul(q, t) r = Relu(s) p = Softmax(r) y = MatMul(p, v)",
        "s = MatMul(q, t) a = Where(c, s, two) p = Softmax(a) y = MatMul(p, v)",
        "s = MatMul(q, t) p = Softmax(s) a = Mul(p, two) y = MatMul(a, v)",
        "s = MatMul(q, t) w = Softmax(s) n = IsNaN(w) p = Where(n, two, w) y = MatMul(p, v)",
    ],
)
def test_what_is_no_attention_stays(body: str) -> None:
    original = graph(body, f"{Q}, {T}, {V}, bool[5,7] c", Y)
    assert FindAttention(original).run() is original


@over("attribute", ["softcap = 2.0", "qk_matmul_output_mode = 1", "q_num_heads = 3, is_causal = 1"])
def test_what_is_computed_otherwise_stays(attribute: str) -> None:
    original = graph(f"y = Attention<{attribute}>(q, k, v)", f"{Q}, {K}, {V}", Y)
    operators = [node.operator for node in FindAttention(original).run().nodes]
    assert operators == [Op.Attention]
