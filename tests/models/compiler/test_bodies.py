"""Weights and names inside If and Loop: counted, bounded, and unique."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.compiler import CompileOptions
from models.compiler.optimising.bodies import move_out, rename_inner
from models.graphs import graph as graphs
from models.graphs.nodes import all_graphs, inner_tensors
from models.graphs.text import from_text
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


TWENTY = f"{{{', '.join(map(str, range(20)))}}}"
BODIES = f"""<ir_version: 9, opset_import: ["" : 17]>
    g (float[4] x, bool c) => (float[4] y) {{
        a = Neg(x)
        y = If(c) <
            then_branch = t () => (float[4] p) <float[20] w = {TWENTY}, float s = {{2}}> {{
                a = Mul(x, s)
                p = If(c) <
                    then_branch = u () => (float[20] r) {{ p = Neg(a) q = Sum(p, w) r = Abs(q) }},
                    else_branch = v () => (float[20] a) <float[20] w = {TWENTY}> {{ a = Add(w, x) }}
                >
            }},
            else_branch = e () => (float[20] w) <float[20] w = {TWENTY}> {{ q = Add(a, w) }}
        >
    }}"""


def wires(graph: graphs.Graph) -> list[str]:
    """Return what each node reads and computes, and what each graph returns."""
    return [
        "; ".join(f"{' '.join(n.inputs)} > {' '.join(n.outputs)}" for n in inner.nodes)
        + f": {' '.join(inner.outputs)}"
        for inner in graphs.all_graphs(graph)
    ]


def test_what_bodies_define_has_a_name_that_nothing_outside_has() -> None:
    renamed = rename_inner(from_text(BODIES))
    assert wires(renamed) == [
        "x > a; c > y: y",
        "x s > a/1; c > p: p",
        "a/1 > p/2; p/2 w > q; q > r: r",
        "w/4 x > a/3: a/3",
        "a w > q: w",
    ]
    for inner in graphs.all_graphs(renamed):
        assert not inner.values.keys() - {*inner.inputs, *inner.outputs}


def test_weights_of_bodies_move_out_and_their_numbers_stay() -> None:
    moved = move_out(from_text(BODIES))
    assert wires(moved) == [
        "x > a; c > y: y",
        "x s > a; c > p: p",
        "a > p; p w/1 > q; q > r: r",
        "w/2 x > a: a",
        "a w/3 > q; w/3 > w: w",
    ]
    assert [[*inner.constants] for inner in graphs.all_graphs(moved)] == [
        ["w/1", "w/2", "w/3"],
        ["s"],
        *([], [], []),
    ]


def rates() -> onnx.ModelProto:
    """A detector for two rates, as those of voices: each branch squeezes what is single at its rate."""
    return parsed(
        """rates (float[1,len] x, int64 rate) => (float[a,b,c] y) {
            axis = Constant<value = int64[1] {1}>()
            both = Constant<value = int64[2] {0, 1}>()
            high = Constant<value = int64 {16000}>()
            u = Unsqueeze(x, axis)
            is_high = Equal(rate, high)
            y = If(is_high) <
                then_branch = t () => (float[a,b,c] p) {
                    f = Conv<strides=[8]>(u, w8)
                    s = Squeeze(f)
                    g = Unsqueeze(s, both)
                    none, p = RNN<hidden_size=2>(g, v, r)
                },
                else_branch = e () => (float[a,b,c] q) {
                    f4 = Conv<strides=[4]>(u, w4)
                    s4 = Squeeze(f4)
                    g4 = Unsqueeze(s4, both)
                    none4, q = RNN<hidden_size=2>(g4, v, r)
                }
            >
        }""",
        {"w8": (6, 1, 8), "w4": (6, 1, 4), "v": (1, 2, 6), "r": (1, 2, 2)},
    )


@pytest.mark.parametrize("length", [8, 4])
def test_a_branch_for_other_lengths_does_not_refuse(length: int, tmp_path: Path) -> None:
    """ONNX Runtime refuses it with fixed lengths, and runs it with open ones."""
    source = written(rates(), tmp_path / "m.onnx")
    options = CompileOptions(shapes={"x": (1, length)})
    inputs = {**inputs_for({"x": (1, length)}), "rate": np.array(2000 * length)}
    pack = compiled(source, tmp_path, options)
    assert [piece.operators[-1] for piece in pack.manifest.resident_pieces] == ["If"]
    same(streamed(pack, inputs), answers(source, inputs), 1e-6, 1e-6)


def squeezed_if_single(tag: str, stride: int) -> str:
    """A branch that drops, as exporters write it, an axis that is single, and then needs its rank.

    Whether it is single an If inside decides, of lengths; two more make it five with the outer one.
    """
    return f"""
        f{tag} = Conv<strides=[{stride}]>(u, w{stride})
        shape{tag} = Shape(f{tag})
        last{tag} = Constant<value = int64 {{2}}>()
        one{tag} = Constant<value = int64 {{1}}>()
        first{tag} = Constant<value = int64[1] {{0}}>()
        n{tag} = Gather(shape{tag}, last{tag})
        single{tag} = Equal(n{tag}, one{tag})
        s{tag} = If(single{tag}) <
            then_branch = t{tag} () => (float[a,b] p{tag}) {{
                p{tag} = ReduceMax<axes = [2], keepdims = 0>(f{tag})
            }},
            else_branch = e{tag} () => (float[a,b,c] q{tag}) {{ q{tag} = Identity(f{tag}) }}
        >
        g{tag} = Unsqueeze(s{tag}, first{tag})
        none{tag}, h{tag} = RNN<hidden_size=2>(g{tag}, v, r)
        several{tag} = Not(single{tag})
        five{tag} = Constant<value = int64[1] {{5}}>()
        o{tag} = If(several{tag}) <
            then_branch = x{tag} () => (float[a,b,c] y{tag}) {{
                y{tag} = Gather<axis = 2>(h{tag}, five{tag})
            }},
            else_branch = z{tag} () => (float[a,b,c] k{tag}) {{ k{tag} = Identity(h{tag}) }}
        >
    """


def test_a_branch_that_is_refused_once_inner_conditions_are_folded(tmp_path: Path) -> None:
    """ONNX Runtime loads it with fixed lengths, and its optimisations then refuse it.

    What it allocates is measured, where inner conditions cannot all be true, nor all false.
    """
    model = parsed(
        f"""rates (float[1,len] x, int64 rate) => (float[a,b,c] y) {{
            middle = Constant<value = int64[1] {{1}}>()
            high = Constant<value = int64 {{16000}}>()
            u = Unsqueeze(x, middle)
            is_high = Equal(rate, high)
            y = If(is_high) <
                then_branch = t () => (float[a,b,c] ot) {{ {squeezed_if_single("t", 8)} }},
                else_branch = e () => (float[a,b,c] oe) {{ {squeezed_if_single("e", 4)} }}
            >
        }}""",
        {"w8": (6, 1, 8), "w4": (6, 1, 4), "v": (1, 2, 6), "r": (1, 2, 2)},
    )
    source = written(model, tmp_path / "m.onnx")
    warnings: list[str] = []
    options = CompileOptions(shapes={"x": (1, 8)}, warn=warnings.append)
    inputs = {**inputs_for({"x": (1, 8)}), "rate": np.array(16000)}
    pack = compiled(source, tmp_path, options)
    assert warnings == []
    same(streamed(pack, inputs), answers(source, inputs), 1e-6, 1e-6)


@pytest.mark.parametrize("length", [1, 4])
def test_lengths_that_choose_the_branch_stay_fixed(length: int, tmp_path: Path) -> None:
    """As exporters write a squeeze of what may be single: no If is left, nor anything resident."""
    model = parsed(
        f"""single (float[1,8,{length}] x) => (float[a,b] y) {{
            shape = Shape(x)
            last = Constant<value = int64 {{2}}>()
            one = Constant<value = int64 {{1}}>()
            axis = Constant<value = int64[1] {{2}}>()
            n = Gather(shape, last)
            is_one = Equal(n, one)
            r = Relu(x)
            h = If(is_one) <
                then_branch = t () => (float[a,b] p) {{ p = Squeeze(r, axis) }},
                else_branch = e () => (float[a,b] q) {{ q = ReduceMax<axes=[2], keepdims=0>(r) }}
            >
            y = Neg(h)
        }}"""
    )
    inputs = inputs_for({"x": (1, 8, length)})
    pack = compiled(written(model, tmp_path / "m.onnx"), tmp_path)
    assert [port.shape for port in pack.manifest.outputs] == [(1, 8)]
    assert not pack.manifest.resident_pieces
    expected = {"y": -np.maximum(inputs["x"], 0).max(axis=2)}
    same(streamed(pack, inputs), expected, 0, 0)
