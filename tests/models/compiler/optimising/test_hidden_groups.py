"""Hidden channels of an MLP, and heads of attention, some at a time: the same sums, a few channels wide."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from models.compiler.optimising.hidden_groups import HiddenGroups
from models.graphs.graph import Graph
from models.network.fields import Array
from models.network.names import Op
from models.packs.target import host_target
from models.zoo.builder import SkeletonBuilder
from tests.models.compiler.optimising.test_as_convolutions import check
from tests.models.compiler.optimising.test_attention import computed, drawn, graph

_BLOCK, _TOKENS, _WIDTH, _HIDDEN = 16, 6, 32, 640
_X = f"float[1,{_TOKENS},{_WIDTH}] x, float[1,{_TOKENS},{_WIDTH}] r"
_Y = f"float[1,{_TOKENS},{_WIDTH}] y"
_LENGTHS = f"int64[2] rows = {{{_TOKENS}, -1}}, int64[3] tokens = {{1, {_TOKENS}, -1}}"
_CONSTANTS = f", float half = {{0.5}}, {_LENGTHS}"
#: By name: the shape of a weight.
_WEIGHTS = {
    "up": (_WIDTH, _HIDDEN),
    "gate": (_WIDTH, _HIDDEN),
    "keys": (_WIDTH, _HIDDEN),
    "down": (_HIDDEN, _WIDTH),
    "up_bias": (_HIDDEN,),
    "bias": (_WIDTH,),
    "factors": (_WIDTH,),
}
_ATTENTION = "a = com.microsoft.MultiHeadAttention<num_heads = 10, scale = 0.5>"
_PROJECTED = f"q = MatMul(x, up) k = MatMul(x, gate) v = MatMul(x, keys) {_ATTENTION}"
_ADDED = "o = MatMul(a, down) y = Add(r, o)"


def network(body: str, inputs: str = _X) -> Graph:
    """Return the graph of ``body`` with the weights that it reads."""
    used = [name for name in _WEIGHTS if f" {name}" in body.replace(")", " ").replace(",", " ")]
    shapes = "".join(f", float[{','.join(map(str, _WEIGHTS[name]))}] {name}" for name in used)
    read = graph(body, inputs + shapes, _Y, constants=_CONSTANTS)
    # ONNX knows nothing of attention.
    hidden = Array(dtype="float32", shape=(1, _TOKENS, _HIDDEN))
    typed = {"a": hidden, "o": replace(hidden, shape=(1, _TOKENS, _WIDTH))} | dict(read.values)
    generator = np.random.default_rng(7)
    weights = {
        name: generator.standard_normal(_WEIGHTS[name]).astype(np.float32) / 8 for name in used
    }
    return replace(
        read,
        inputs=tuple(name for name in read.inputs if name not in used),
        values={name: array for name, array in typed.items() if name not in used},
        constants={**read.constants, **weights},
    )


def divided(original: Graph, count: int) -> Graph:
    """Return ``original`` with what it hides in ``count`` groups; it answers the same."""
    min_bytes = _TOKENS * _HIDDEN * 4 // count
    result = HiddenGroups(original, _BLOCK, min_bytes=min_bytes).run()
    inputs = drawn(original)
    expected = computed(original, inputs)
    np.testing.assert_allclose(computed(result, inputs), expected, rtol=1e-5, atol=1e-5)
    return result


def widths(of: Graph, operator: str) -> list[int]:
    return [of.values[node.output].shape[-1] for node in of.nodes if node.operator == operator]


MLPS = {
    "one activation": "h = MatMul(x, up) a = Gelu(h)",
    "several": "h = MatMul(x, up) b = Add(h, half) c = Sigmoid(b) a = Mul(b, c)",
    "a gate": "h = MatMul(x, up) g = MatMul(x, gate) s = Sigmoid(g) a = Mul(h, s)",
}


@pytest.mark.parametrize("name", MLPS)
def test_groups_of_hidden_channels_are_added_up(name: str) -> None:
    result = divided(network(f"{MLPS[name]} {_ADDED}"), 5)
    assert max(widths(result, "MatMul")) == _HIDDEN // 5
    assert widths(result, "MatMul").count(_WIDTH) == 5
    assert max(array.size for array in result.constants.values()) == _HIDDEN * _WIDTH
    assert "h" not in result.values


def test_a_last_group_is_the_rest() -> None:
    result = divided(network(f"{MLPS['one activation']} {_ADDED}"), 4)
    assert widths(result, "Gelu") == [256, 256, 128]


def test_a_gemm_adds_its_bias_once_and_a_scale_is_part_of_its_weights() -> None:
    body = (
        "f = Reshape(x, rows) h = Gemm(f, up, up_bias) t = Reshape(h, tokens) g = Gelu(t) "
        "a = Reshape(g, rows) o = Gemm(a, down, bias) p = Reshape(o, tokens) "
        "s = Mul(p, factors) y = Add(s, r)"
    )
    result = divided(network(body), 5)
    last = [node for node in result.nodes if node.operator == Op.Gemm and node.inputs[2:]]
    assert len(last) == 5 + 1  # a part of the first bias for each group, the second one once
    assert not any(node.operator == Op.Mul for node in result.nodes)


def test_heads_are_divided() -> None:
    result = divided(network(f"{_PROJECTED}(q, k, v) {_ADDED}"), 5)
    heads = [node.attributes.get("num_heads") for node in result.nodes]
    assert Counter(heads) == {2: 5, None: 5 * 3 + 5 + 5}


def test_a_mask_that_all_heads_share_is_that_of_each_group() -> None:
    mask = f"{_X}, float[1,1,{_TOKENS},{_TOKENS}] m"
    result = divided(network(f"{_PROJECTED}(q, k, v, , , m) {_ADDED}", mask), 4)
    assert widths(result, "com.microsoft.MultiHeadAttention") == [256, 256, 128]


OTHERS = {
    "a sum over channels": "h = MatMul(x, up) a = Softmax(h)",
    "nothing between": "a = MatMul(x, up)",
    "a constant a channel": "h = MatMul(x, up) a = Add(h, up_bias)",
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name: str) -> None:
    original = network(f"{OTHERS[name]} {_ADDED}")
    assert HiddenGroups(original, _BLOCK, min_bytes=1).run() is original


def test_hidden_channels_that_another_node_reads_stay() -> None:
    body = "h = MatMul(x, up) a = Gelu(h) m = ReduceMean(h) n = Add(r, m) o = MatMul(a, down) "
    original = network(f"{body} y = Add(n, o)")
    assert HiddenGroups(original, _BLOCK, min_bytes=1).run() is original


def test_heads_with_separate_masks_stay() -> None:
    mask = f"{_X}, float[1,10,{_TOKENS},{_TOKENS}] m"
    original = network(f"{_PROJECTED}(q, k, v, , , m) {_ADDED}", mask)
    assert HiddenGroups(original, _BLOCK, min_bytes=1).run() is original


def test_what_is_small_stays() -> None:
    original = network(f"{MLPS['one activation']} {_ADDED}")
    assert HiddenGroups(original, _BLOCK).run() is original
    min_bytes = _TOKENS * _HIDDEN * 4 // 3
    assert HiddenGroups(original, _BLOCK, min_bytes=min_bytes).run() is original


def test_what_is_less_than_another_tensor_stays() -> None:
    """At the largest one 2 x (hidden + added) bytes live."""
    n_rows = 2 * _TOKENS * (_HIDDEN + _WIDTH) // 64
    large = f"{_X}, float[{n_rows},64] z"
    body = f"{MLPS['one activation']} {_ADDED} u = Relu(z)"
    original = network(body, large)
    assert HiddenGroups(original, _BLOCK, min_bytes=1).run() is original
    smaller = network(body, large.replace(str(n_rows), str(n_rows - 1)))
    assert HiddenGroups(smaller, _BLOCK, min_bytes=1).run() is not smaller


def block_of_tokens() -> onnx.ModelProto:
    """An MLP with a residual on 1,024 tokens of 32 channels; 512 are hidden."""
    b = SkeletonBuilder("block", 64)
    patches = b.reshape(b.conv(b.image, 32, 2, 2, pads=(0, 0, 0, 0)), 1, 32, -1)
    x = b.transpose(patches, 0, 2, 1)
    y = b.dense(b.gelu(b.dense(b.layer_norm(x), 512)), 32)
    return b.model(b.layer_norm(b.add(x, y)))


@pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")
def test_a_pack_adds_groups_up_over_the_residual(tmp_path: Path) -> None:
    manifest = check(block_of_tokens(), tmp_path)
    layers = Counter(layer.operator for layer in manifest.layers)
    assert (layers["Conv"], layers["Gelu"], layers["Add"]) == (1 + 2 * 4, 4, 0)
