"""What ONNX Runtime runs and the ONNX standard has otherwise: read, compiled and streamed the same."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node

from models.errors import OnnxError
from models.graphs.nodes import all_graphs, name_nodes
from models.graphs.onnx_reader import read_onnx
from models.graphs.tidy import lower_versions
from models.runtime.kernels import NEWEST_OPSET
from tests.examples import over
from tests.models.nets import answers, inputs_for, parsed, written
from tests.models.refusal import refuses
from tests.models.streamed import compiled, same, streamed

VALUES = np.array([1, 2, 3], np.float32)


def relu_and_neg(**imports: int) -> onnx.ModelProto:
    model = parsed("two (float[1,64] x) => (float[1,64] y) { z = Relu(x)\n y = Neg(z) }")
    del model.opset_import[:]
    for domain, version in imports.items():
        model.opset_import.add(domain=domain.replace("_", "."), version=version)
    return model


def long_domain() -> onnx.ModelProto:
    model = relu_and_neg(ai_onnx=17)
    for node in model.graph.node:
        node.domain = "ai.onnx"
    return model


def both_domains() -> onnx.ModelProto:
    model = relu_and_neg(ai_onnx=17)
    model.opset_import.add(domain="", version=17)
    model.graph.node[0].domain = "ai.onnx"
    return model


def unsorted() -> onnx.ModelProto:
    model = parsed("two (float[1,64] x) => (float[1,64] y) { z = Relu(x)\n y = Neg(z) }")
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    return model


def nameless() -> onnx.ModelProto:
    model = relu_and_neg(**{"": 17})
    model.graph.name = ""
    return model


def twice_the_same_weight() -> onnx.ModelProto:
    model = parsed("sum (float[1,64] x) => (float[1,64] y) { y = Add(x, w) }", {"w": (64,)})
    model.graph.initializer.append(numpy_helper.from_array(np.ones(64, np.float32), "w"))
    return model


def untyped_output() -> onnx.ModelProto:
    model = relu_and_neg(**{"": 17})
    model.graph.output[0].ClearField("type")
    return model


def only_onnx_runtime_has_it() -> onnx.ModelProto:
    """Exporters of language models write it into ONNX's own set, where the standard has none."""
    text = "n (float[1,4,64] x) => (float[1,4,64] y) { y = SimplifiedLayerNormalization<axis=-1>(x, w) }"
    return parsed(text, {"w": (64,)})


def sparse(indices: list[int] | list[list[int]], dims: tuple[int, ...]) -> onnx.SparseTensorProto:
    return onnx.SparseTensorProto(
        values=numpy_helper.from_array(VALUES, "w"),
        indices=numpy_helper.from_array(np.array(indices, np.int64), "places"),
        dims=dims,
    )


def sparse_weight(*args: object) -> onnx.ModelProto:
    model = parsed("m (float[1,64] x) => (float[1,64] y) { y = MatMul(x, w) }")
    model.graph.sparse_initializer.append(sparse([0, 65, 200], (64, 64)))
    return model


def sparse_weight_by_axes() -> onnx.ModelProto:
    model = sparse_weight()
    model.graph.sparse_initializer[0].CopyFrom(sparse([[0, 0], [1, 1], [3, 8]], (64, 64)))
    return model


def sparse_constant() -> onnx.ModelProto:
    model = parsed("m (float[1,64] x) => (float[1,64] y) { y = MatMul(x, w) }")
    made = make_node("Constant", [], ["w"], sparse_value=sparse([0, 65, 200], (64, 64)))
    model.graph.node.insert(0, made)
    return model


def dropping() -> onnx.ModelProto:
    """Dropout with a ratio that drops everything is no copy."""
    model = parsed(
        "d (float[1,64] x) => (float[1,64] y) { z = Exp(x)\n y = Dropout<seed=3>(z, ratio, yes) }"
    )
    for name, value in (("ratio", np.float32(0.9999999)), ("yes", np.True_)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    return model


def named_like_ours() -> onnx.ModelProto:
    """A name that the compiler would give a value of its own."""
    model = parsed("n (float[1,4] x) => (float s, float t) { s = ReduceSum<keepdims=0>(x) }")
    model.graph.node.append(make_node("Identity", ["s"], ["s/rank"]))
    model.graph.output[1].name = "s/rank"
    return model


def typed_as_a_scalar() -> onnx.ModelProto:
    """A declared output shape that is wrong: ONNX Runtime goes by what it infers."""
    return parsed("r (float[1,64] x) => (float y) { y = Relu(x) }")


def taken_inside() -> onnx.ModelProto:
    """A branch reads what lies inside a Mish that is written as three operators."""
    return parsed(
        """m (float[1,64] x) => (float[1,64] y, float[1,64] z) {
            a = Softplus(x)
            b = Tanh(a)
            y = Mul(x, b)
            c = ReduceMax<keepdims=0>(x)
            d = Greater(c, c)
            z = If(d) <then_branch = t () => (float[1,64] p) { p = Exp(a) },
                       else_branch = e () => (float[1,64] q) { q = Neg(a) }>
        }"""
    )


def stale_branches() -> onnx.ModelProto:
    """Branches that declare shapes of another rank and size than they have."""
    return parsed(
        """s (float[1,64] x) => (float[1,n] y) {
            c = ReduceMax<keepdims=0>(x)
            d = Greater(c, c)
            y = If(d) <then_branch = t () => (float p) { p = Neg(x) },
                       else_branch = e () => (float[1,32] q) { q = Concat<axis=1>(x, x) }>
        }"""
    )


def times_a_constant() -> onnx.ModelProto:
    """A factor that a node without inputs makes: no Mish."""
    return parsed(
        """c (float[1,64] x) => (float[1,64] y) {
            k = Constant<value = float[1] {2.0}>()
            y = Mul(x, k)
        }"""
    )


def reshaped_rows() -> onnx.ModelProto:
    """Two layers on rows whose shapes ONNX Runtime and the compiler both change: none has a name."""
    return parsed(
        """m (float[2,5,32] x) => (float y) {
            a = MatMul(x, v)
            b = Add(a, p)
            c = Transpose<perm=[1,0,2]>(b)
            s = Constant<value_ints=[1,1,10,48]>()
            d = Reshape(c, s)
            e = MatMul(d, w)
            y = Add(e, q)
        }""",
        {"v": (32, 48), "p": (48,), "w": (48, 64), "q": (64,)},
    )


def named_as_another_output() -> onnx.ModelProto:
    model = parsed("n (float[1,64] x) => (float y) { a = Relu(x)\n b = Neg(a)\n y = Exp(b) }")
    model.graph.node[0].name = "y"
    return model


MODELS: list[Callable[[], onnx.ModelProto]] = [
    long_domain,
    both_domains,
    unsorted,
    nameless,
    twice_the_same_weight,
    untyped_output,
    only_onnx_runtime_has_it,
    sparse_weight,
    sparse_weight_by_axes,
    sparse_constant,
    dropping,
    named_like_ours,
    typed_as_a_scalar,
    taken_inside,
    stale_branches,
    times_a_constant,
    reshaped_rows,
    named_as_another_output,
]


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_it_runs_as_in_onnx_runtime(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    model = make()
    source = written(model, tmp_path / "m.onnx")
    inputs = inputs_for(
        {
            v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim)
            for v in model.graph.input
        }
    )
    same(streamed(compiled(source, tmp_path), inputs), answers(source, inputs), 1e-5, 1e-5)


def test_sorting_changes_as_little_as_it_can(tmp_path: Path) -> None:
    order = ["d", "a", "c", "b"]
    needs = {"a": "x", "b": "a", "c": "x", "d": "b"}
    model = parsed("s (float[4] x) => (float[4] d) { d = Relu(x) }")
    del model.graph.node[:]
    model.graph.node.extend(make_node("Relu", [needs[name]], [name]) for name in order)
    read = read_onnx(written(model, tmp_path / "m.onnx"))
    assert [node.output[0] for node in read.graph.node] == ["a", "c", "b", "d"]


@over(
    "names, expected",
    [
        (["", "", ""], ["a", "b", "y"]),
        (["n", "b", "m"], ["n", "b", "m"]),
        (["n", "n", "n"], ["n", "n_1", "n_2"]),
        (["y", "a", ""], ["y", "a", "y_1"]),
        (["", "a", "a"], ["a_1", "a", "a_2"]),
        (["n", "n", "n_1"], ["n", "n_2", "n_1"]),
    ],
)
def test_nodes_have_unique_names(names: list[str], expected: list[str]) -> None:
    model = parsed("n (float[4] x) => (float y) { a = Relu(x)\n b = Neg(a)\n y = Exp(b) }")
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name
    assert name_nodes(model) == (names != expected)
    assert [node.name for node in model.graph.node] == expected
    assert not name_nodes(model)


def test_nodes_in_bodies_have_unique_names() -> None:
    model = taken_inside()
    name_nodes(model)
    names = [node.name for graph in all_graphs(model.graph) for node in graph.node]
    assert all(names)
    assert len({*names}) == len(names)


def test_many_nodes_of_one_name() -> None:
    """Names that grow by a letter each would take gigabytes."""
    model = parsed("n (float[4] x) => (float y) { y = Relu(x) }")
    model.graph.node.extend(make_node("Relu", ["x"], [""], "n") for _ in range(2000))
    name_nodes(model)
    assert max(len(node.name) for node in model.graph.node) < 10


@over(
    "body, opset, expected",
    [
        ("y = Relu(x)", 28, NEWEST_OPSET),
        ("y = Relu(x)", 17, 17),
        ("y = Celu(x)", 28, 28),
        ("y = GlobalLpPool(x)", 28, 21),
        ("a = Celu(x)\n y = GlobalLpPool(a)", 28, 21),
        ("a = Swish(x)\n y = GlobalLpPool(a)", 28, 28),
        ("a = Swish(x)\n y = Cast<to=10>(a)", 26, 24),
        ("a = SpaceToDepth<blocksize=2>(x)\n y = GlobalLpPool(a)", 28, 21),
        ('a = SpaceToDepth<blocksize=2, mode="DCR">(x)\n y = GlobalLpPool(a)', 28, 28),
        ("a = Cast<to=1>(x)\n y = RoiAlign(a, b, c)", 25, 21),
        ("a = Attention(x, x, x)\n y = Swish(a)", 25, 24),
        ("a = Attention<left_window_size=2>(x, x, x)\n y = Swish(a)", 25, 25),
        ("a, b, c, d = Attention(x, x, x, m, x, x)\n y = GlobalLpPool(a)", 23, 23),
        ("a = GlobalLpPool(x)\n y = RoiAlign(a, b, c)", 22, 21),
        ("a = Relu(x)\n y = Sketched(a)", 28, 28),
    ],
)
def test_versions_without_a_kernel_are_lowered(body: str, opset: int, expected: int) -> None:
    model = parsed(f"v (float[1,4,8,8] x) => (float y) {{ {body} }}")
    model.opset_import[0].version = opset
    lower_versions(model)
    assert model.opset_import[0].version == expected


def test_quantised_values_of_a_version_without_a_kernel(tmp_path: Path) -> None:
    model = parsed(
        """q (float[1,8] x) => (float[1,8] y) <float s = {0.5}, uint8 z = {3}> {
            q = QuantizeLinear(x, s, z)
            y = DequantizeLinear(q, s, z)
        }"""
    )
    model.opset_import[0].version = 28
    x = np.linspace(-2, 2, 8, dtype=np.float32).reshape(1, 8)
    outputs = streamed(compiled(written(model, tmp_path / "m.onnx"), tmp_path), {"x": x})
    np.testing.assert_allclose(outputs["y"], np.rint(x * 2).clip(-3) / 2)


def test_nodes_in_a_circle_are_refused(tmp_path: Path) -> None:
    model = parsed("c (float[4] x) => (float[4] y) { y = Add(x, z)\n z = Relu(y) }")
    source = written(model, tmp_path / "m.onnx")
    fault = "(Add) reads 'z', which no node before it makes"
    with refuses(OnnxError, source, "not valid", fault, "export it again"):
        compiled(source, tmp_path)


@over(
    "changed, reason",
    [
        (sparse([0, 1, 4096], (64, 64)), "an index lies outside of [64, 64]"),
        (sparse([-1, 1, 2], (64, 64)), "an index lies outside"),
        (sparse([[0, 0], [1, 64], [2, 2]], (64, 64)), "an index lies outside"),
        (sparse([0, 1], (64, 64)), "indices [2] do not fit values [3]"),
        (sparse([[0], [1], [2]], (64, 64)), "indices [3, 1] do not fit"),
        (sparse([0, 1, 2], (-64, 64)), "negative dimension"),
        (sparse([0, 1, 2], (1 << 20, 1 << 20)), "at most 1 GiB"),
        (onnx.SparseTensorProto(dims=[64, 64]), "unknown data type 0"),
    ],
)
def test_impossible_sparse_weights_are_refused(
    changed: onnx.SparseTensorProto, reason: str, tmp_path: Path
) -> None:
    model = sparse_weight()
    model.graph.sparse_initializer[0].CopyFrom(changed)
    source = written(model, tmp_path / "m.onnx")
    with refuses(OnnxError, source, reason):
        read_onnx(source)


def test_sparse_constants_cannot_read_other_files(tmp_path: Path) -> None:
    model = sparse_constant()
    values = model.graph.node[0].attribute[0].sparse_tensor.values
    values.ClearField("raw_data")
    values.data_location = TensorProto.EXTERNAL
    values.external_data.add(key="location", value="../../etc/passwd")
    source = written(model, tmp_path / "m.onnx")
    with refuses(OnnxError, source, "leaves the model's folder"):
        read_onnx(source)


@pytest.mark.parametrize("inside", ["then_branch", "graph"])
def test_names_of_graphs_must_be_text(inside: str, tmp_path: Path) -> None:
    branch = helper.make_graph([make_node("Neg", ["x"], ["b"])], "Q1Q1", [], [])
    node = make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    model = relu_and_neg(**{"": 17})
    if inside == "graph":
        model.graph.name = "Q1Q1"
    else:
        model.graph.node.append(node)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString().replace(b"Q1Q1", b"Q\xc2Q1"))
    with refuses(OnnxError, path, "not UTF-8"):
        read_onnx(path)


def test_a_node_that_contradicts_its_inputs_is_named_with_a_hint(tmp_path: Path) -> None:
    text = "m (float[2,3] x) => (float[2,5] y) <float[4,5] w = {%s}> { y = MatMul(x, w) }"
    model = parsed(text % ", ".join("1" * 20))
    model.graph.node[0].name = "head/fc"
    source = written(model, tmp_path / "m.onnx")
    with refuses(OnnxError, source, "node 'head/fc' (MatMul)", "export it again"):
        compiled(source, tmp_path)


def test_messages_do_not_name_working_files(tmp_path: Path) -> None:
    source = written(parsed("r (float[1] x) => (double[1] y) { y = Relu(x) }"), tmp_path / "m.onnx")
    with pytest.raises(OnnxError) as caught:
        compiled(source, tmp_path)
    assert "source.onnx" not in str(caught.value)
    assert "Type" in str(caught.value)


@over(
    "operator, inputs, outputs",
    [("Mish", [], ["y"]), ("Mish", ["x"], []), ("Mul", ["x"], ["y"])],
)
def test_nodes_without_what_they_need_are_refused(
    operator: str, inputs: list[str], outputs: list[str], tmp_path: Path
) -> None:
    model = relu_and_neg(**{"": 18})
    model.graph.node.append(make_node(operator, inputs, outputs))
    source = written(model, tmp_path / "m.onnx")
    with refuses(OnnxError, source, "not valid", operator):
        compiled(source, tmp_path)
