"""Rules that networks keep between passes: each is broken once, and named; nothing else breaks one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import helper

from models.compiler.passes.record import Compilation, Pass
from models.compiler.passes.run import run
from models.compiler.passes.table import TARGETS
from models.compiler.passes.verify import Verifying, verify
from models.compiler.passes.view import model_between
from models.errors import CompileError
from models.graphs.onnx_reader import read_onnx
from models.network.fields import Array
from models.packs.target import Target
from tests.models.compiler.cnns import cnn
from tests.models.nets import parsed, written

_BLOCKS_OF_8 = Target(isa="x86_64-avx2", block=8, onnxruntime="")


def passed(model: onnx.ModelProto, folder: Path, until: str, target: str = "plain") -> Compilation:
    """Return ``model`` after the passes up to ``until``."""
    source = written(model, folder / "m.onnx")
    work = folder / "work"
    work.mkdir()
    plain = Target(isa="aarch64-generic", block=1, onnxruntime="")
    compilation = Compilation(read_onnx(source), source, work, plain)
    passes = TARGETS[target]
    end = max(index for index, step in enumerate(passes) if step.name == until)
    run(compilation, passes[: end + 1])
    return compilation


def branches() -> onnx.ModelProto:
    return parsed(
        """two (float[1,64,16,16] x) => (float[1,128,16,16] y) {
            a = Conv(x, w)
            b = Conv(x, v)
            c = Concat<axis=1>(a, b)
            y = Relu(c)
        }""",
        {"w": (64, 64, 1, 1), "v": (64, 64, 1, 1)},
    )


def _reversed(work: Compilation) -> None:
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in work.model.graph.node]
    del work.model.graph.node[:]
    work.model.graph.node.extend(reversed(nodes))


def _twice(work: Compilation) -> None:
    work.model.graph.node.append(work.model.graph.node[-1])


def _same_names(work: Compilation) -> None:
    for node in work.model.graph.node:
        node.name = "n"


def _no_output(work: Compilation) -> None:
    work.model.graph.node[-1].output[0] = "z"


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (_reversed, "which nothing made before"),
        (_twice, "which there is already"),
        (_same_names, "nodes are called 'n'"),
        (_no_output, "nothing makes the output 'y'"),
    ],
)
def test_names_of_models(
    broken: Callable[[Compilation], None], message: str, tmp_path: Path
) -> None:
    work = passed(branches(), tmp_path, "fold-constants")
    verify(work)
    broken(work)
    with pytest.raises(CompileError, match=message):
        verify(work)


def test_types_that_a_graph_says(tmp_path: Path) -> None:
    work = passed(branches(), tmp_path, "read-graph")
    verify(work)
    work.graph = replace(
        work.graph, values={**work.graph.values, "a": Array(dtype="float32", shape=(1, 2))}
    )
    with pytest.raises(CompileError, match=r"value 'a' is .*, the graph says"):
        verify(work)


def test_pieces(tmp_path: Path) -> None:
    work = passed(branches(), tmp_path, "load-pieces")
    verify(work)
    pieces = list(work.divided.pieces)
    work.divided.pieces = pieces[:-1]
    with pytest.raises(CompileError, match="is in no piece"):
        verify(work)
    work.divided.pieces = [*pieces, pieces[0]]
    with pytest.raises(CompileError, match="begin before those up to"):
        verify(work)


def test_values_inside_others(tmp_path: Path) -> None:
    work = passed(branches(), tmp_path, "share-memory")
    parents = work.divided.aliases.parents
    assert {"a", "b"} <= parents.keys()
    parents["a"] = (parents["a"][0], 1 << 20)
    with pytest.raises(
        CompileError, match="value 'a' lies at byte 1048576 of 'c', which ends before"
    ):
        verify(work)
    parents["a"], parents["b"] = ("b", 0), ("a", 0)
    with pytest.raises(CompileError, match="inside of each other"):
        verify(work)


# Blocks of channels, in ONNX Runtime's operators.

BLOCKED = """<ir_version: 9, opset_import: ["" : 17, "com.microsoft.nchwc" : 1]>
    blocks (float[1,16,4,4] x) => (float[1,16,4,4] y)
    <float[16,16,1,1] w = ["location": "source.data", "offset": "0", "length": "1024"]> {
        a = com.microsoft.nchwc.ReorderInput(x)
        b = com.microsoft.nchwc.Conv<kernel_shape=[1, 1]>(a, w)
        BETWEEN
        y = com.microsoft.nchwc.ReorderOutput<channels=16>(c)
    }"""


@pytest.mark.parametrize(
    ("between", "message"),
    [
        ("c = Relu(b)", ""),
        ("c = Add(a, b)", ""),
        ("c = Transpose<perm=[0, 1, 3, 2]>(b)", "reads 'b', which lies in blocks of channels"),
        ("c = Add(x, b)", "reads 'x', which does not lie in blocks of channels"),
        ("c = Softmax<axis=1>(b)", "reads 'b', which lies in blocks of channels"),
        ("c = Relu(x)", "reads 'c', which does not lie in blocks of channels"),
        ("d, e = Split<axis=1>(b) c = Concat<axis=1>(e, d)", ""),
        ("d, e = Split<axis=2>(b) c = Concat<axis=2>(e, d)", "reads 'b', which lies in blocks"),
    ],
)
def test_what_lies_in_blocks(between: str, message: str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(BLOCKED.replace("BETWEEN", between))
    (tmp_path / "source.data").write_bytes(bytes(1024))
    work = Compilation(model, tmp_path / "m.onnx", tmp_path, _BLOCKS_OF_8, step="optimised")
    work.is_valid = True
    if not message:
        verify(work)
        return
    with pytest.raises(CompileError, match=message):
        verify(work)


def test_a_pass_that_breaks_a_rule_is_named(tmp_path: Path) -> None:
    work = passed(branches(), tmp_path, "fold-constants")
    wrong = Pass(
        name="wrong",
        reason="",
        needs=(),
        level="meaning",
        error="same bits",
        required=False,
        run=_no_output,
    )
    with pytest.raises(CompileError, match=r"m\.onnx: after the pass 'wrong': nothing makes"):
        run(work, [wrong], observers=[Verifying()])


def test_a_network_as_text_is_the_network(tmp_path: Path) -> None:
    work = passed(cnn(1), tmp_path, "order-nodes")
    model = model_between(work)
    again = onnx.parser.parse_model(onnx.printer.to_text(model))
    assert [*map(_plain, again.graph.node)] == [*map(_plain, model.graph.node)]
    assert again.graph.input == model.graph.input
    assert again.graph.output == model.graph.output


def _plain(node: onnx.NodeProto) -> tuple[object, ...]:
    attributes = sorted(
        (item.name, str(helper.get_attribute_value(item))) for item in node.attribute
    )
    return node.op_type, node.domain, [*node.input], [*node.output], attributes
