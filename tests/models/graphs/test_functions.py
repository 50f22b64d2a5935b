"""Local functions of a file: inlined as ONNX Runtime reads them, or refused before they take memory."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.parser import parse_model

from models.errors import OnnxError
from models.graphs.onnx_reader import ReadOptions, read_graph, read_onnx
from models.network.names import Op
from tests.examples import over
from tests.models.nets import written
from tests.models.refusal import refuses
from tests.models.streamed import compiled

_MODEL = '<ir_version: 9, opset_import: ["" : 17, "f" : 1]> '
_CALLED = "g (float[4] x) => (float[4] y) { y = f.f0(x) }"


def model(*functions: str, graph: str = _CALLED, opset: int = 17) -> onnx.ModelProto:
    """Return ``graph`` with functions of the domain "f"."""
    imports = f'<domain: "f", opset_import: ["" : {opset}, "f" : 1]> '
    return parse_model(_MODEL + graph + "".join(imports + function for function in functions))


def chain(levels: int, calls: str) -> onnx.ModelProto:
    """Return functions each of which has the nodes ``calls``, where NEXT is the one behind it."""
    functions = [
        f"f{level} (a) => (c) {{ {calls.replace('NEXT', f'f.f{level + 1}')} }}"
        for level in range(levels)
    ]
    return model(*functions, f"f{levels} (a) => (c) {{ c = Relu(a) }}")


TWICE = "b = NEXT(a)\n c = NEXT(b)"
IN_BRANCHES = """k = Constant<value = bool {1}>()
    c = If(k) <then_branch = t () => (float[4] p) { p = NEXT(a) },
               else_branch = e () => (float[4] q) { q = Neg(a) }>"""


def test_nodes_of_functions_stand_where_they_are_called(tmp_path: Path) -> None:
    functions = model(
        "f0 (a) => (c) { b = f.f1<slope = 0.5>(a)\n c = f.f1(b) }",
        "f1 <slope> (a) => (b) { b = LeakyRelu<alpha: float = @slope>(a) }",
    )
    graph = read_graph(written(functions, tmp_path / "m.onnx")).graph
    assert [node.operator for node in graph.nodes] == [Op.LeakyRelu, Op.LeakyRelu]
    assert [dict(node.attributes) for node in graph.nodes] == [{"alpha": 0.5}, {}]
    assert (graph.nodes[0].inputs, graph.nodes[1].outputs) == (("x",), ("y",))


def test_functions_in_bodies_are_inlined(tmp_path: Path) -> None:
    graph = read_graph(written(chain(3, IN_BRANCHES), tmp_path / "m.onnx")).graph
    node = graph.nodes[-1]
    for _ in range(3):
        body = node.attributes["then_branch"]
        node = body.nodes[-1]
    assert node.operator == Op.Relu


def test_operator_sets_are_those_of_the_model(tmp_path: Path) -> None:
    """ONNX Runtime reads functions by those, too, and takes domains that only functions have."""
    functions = model("f0 (a) => (c) { b = com.microsoft.Gelu(a)\n c = Relu(b) }", opset=13)
    functions.functions[0].opset_import.add(domain="com.microsoft", version=1)
    warnings: list[str] = []
    path = written(functions, tmp_path / "m.onnx")
    graph = read_graph(path, ReadOptions(warn=warnings.append)).graph
    assert graph.opsets == {"": 17, "f": 1, "com.microsoft": 1}
    assert [node.opset for node in graph.nodes] == [1, 17]
    (warning,) = warnings
    assert warning.startswith(f"{path}: function 'f0' is of version 13")


@over(
    "functions, reason",
    [
        (["f0 (a) => (b) { b = f.f1(a) }", "f1 (a) => (b) { b = f.f0(a) }"], "in a circle: 'f.f"),
        (["f0 (a) => (b) { b = f.f0(a) }"], "in a circle: 'f.f0', 'f.f0'"),
        (["f0 (a) => (b) { b = Relu(a) }"] * 2, "cannot be inlined: Model contains multiple"),
        (["f0 () => (b) { b = f.f1() }", "f1 () => (b) { b = f.f1() }"], "in a circle"),
        (["f0 () => (b) { b = Constant<value_float = 1.0>() }"], "cannot be inlined: Number of"),
    ],
)
def test_functions_that_cannot_be_inlined_are_refused(
    functions: list[str], reason: str, tmp_path: Path
) -> None:
    source = written(model(*functions), tmp_path / "m.onnx")
    with refuses(OnnxError, source, reason):
        read_graph(source)


@over("levels, calls", [(25, TWICE), (90, TWICE), (40, IN_BRANCHES), (500, "c = NEXT(a)")])
def test_functions_in_functions_are_bounded(levels: int, calls: str, tmp_path: Path) -> None:
    """Twice at 25 levels are 33 million nodes: 16 GiB. Deep bodies are no message that could be read."""
    source = written(chain(levels, calls), tmp_path / "m.onnx")
    with refuses(OnnxError, source, "its functions"):
        read_graph(source)


def giving(n_bytes: int, uses: str, calls: int = 1) -> onnx.ModelProto:
    """Return a function with nodes ``uses``, which is called with a tensor as an attribute."""
    functions = model(f"f0 <t> (a) => (b) {{ {uses}\n b = Relu(a) }}", opset=17)
    tensor = numpy_helper.from_array(np.zeros(n_bytes, np.uint8))
    nodes = [
        helper.make_node("f0", ["x"], ["y" if n == 0 else f"z{n}"], domain="f", t=tensor)
        for n in range(calls)
    ]
    del functions.graph.node[:]
    functions.graph.node.extend(nodes)
    return functions


def test_what_calls_give_is_bounded(tmp_path: Path) -> None:
    """A tensor that many nodes of a function have, or a name that they read, is as often there."""
    uses = "\n".join(f"c{n} = Constant<value: tensor = @t>()" for n in range(300))
    read_onnx(written(giving(1 << 10, uses), tmp_path / "m.onnx"))
    source = written(giving(1 << 20, uses), tmp_path / "m.onnx")
    with refuses(OnnxError, source, "its functions are called so often"):
        read_onnx(source)
    reads = "\n".join(f"c{n} = Neg(a)" for n in range(300))
    functions = giving(0, reads)
    functions.graph.input[0].name = functions.graph.node[0].input[0] = "x" * (1 << 20)
    source = written(functions, tmp_path / "m.onnx")
    with refuses(OnnxError, source, "its functions are called so often"):
        read_onnx(source)


def test_default_values_of_functions_cannot_read_other_files(tmp_path: Path) -> None:
    functions = model("f0 (a) => (b) { b = Constant<value: tensor = @t>() }")
    tensor = TensorProto(dims=[4], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="../../etc/passwd")
    default = functions.functions[0].attribute_proto.add(name="t", type=onnx.AttributeProto.TENSOR)
    default.t.CopyFrom(tensor)
    source = written(functions, tmp_path / "m.onnx")
    with refuses(OnnxError, source, "leaves the model's folder"):
        read_graph(source)


@over("name", ["Q0Q0", "Q1Q1", "Q2Q2", "Q3Q3", "Q4Q4"])
def test_names_in_functions_must_be_text(name: str, tmp_path: Path) -> None:
    functions = model(
        """f0 <Q3Q3> (Q0Q0) => (b) {
            Q1Q1 = LeakyRelu<alpha: float = @Q3Q3>(Q0Q0)
            k = Constant<value = bool {1}>()
            b = If(k) <then_branch = t () => (float[4] p) { p = Neg(Q1Q1) },
                       else_branch = e () => (float[4] Q2Q2) { Q2Q2 = Neg(Q1Q1) }>
        }"""
    )
    functions.functions[0].attribute_proto.append(helper.make_attribute("Q4Q4", 1.0))
    data = functions.SerializeToString()
    source = tmp_path / "m.onnx"
    source.write_bytes(data.replace(name.encode(), b"Q\xc2Q" + name[-1:].encode()))
    with refuses(OnnxError, source, "not UTF-8"):
        read_graph(source)


def test_references_to_attributes_are_refused_outside_of_functions(tmp_path: Path) -> None:
    """Also where a call gives one on to a function, and in bodies."""
    functions = model("f0 <k> (a) => (b) { b = LeakyRelu<alpha: float = @k>(a) }")
    functions.graph.node[0].attribute.add(name="k", ref_attr_name="other", type=1)
    source = written(functions, tmp_path / "m.onnx")
    with refuses(OnnxError, source, "refers to an attribute outside of functions"):
        read_graph(source)
    functions = chain(1, IN_BRANCHES)
    inner = functions.functions[0].node[1].attribute[1].g.node[0]
    inner.attribute.add(name="k", ref_attr_name="other", type=1)
    functions.graph.node[0].CopyFrom(functions.functions[0].node[1])
    source = written(functions, tmp_path / "m.onnx")
    with refuses(OnnxError, source, "refers to an attribute outside of functions"):
        read_graph(source)


def test_a_function_that_is_missing_is_named(tmp_path: Path) -> None:
    source = written(model("f0 (a) => (b) { b = f.absent(a) }"), tmp_path / "m.onnx")
    with refuses(OnnxError, source, "f:absent"):
        compiled(source, tmp_path)
