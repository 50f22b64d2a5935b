"""Rules that networks keep between passes: each is broken once, and named; nothing else breaks one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from models.compiler.passes.record import Compilation, Pass
from models.compiler.passes.run import run
from models.compiler.passes.table import TARGETS
from models.compiler.passes.verify import Verifying, verify
from models.errors import CompileError
from models.graphs.graph import with_files
from models.graphs.onnx_reader import read_graph
from models.graphs.reader import graph_of
from models.graphs.text import from_text, to_text
from models.network.fields import Array
from models.network.node import NamedTensor, Node
from models.packs.target import Target
from tests.models.compiler.cnns import cnn
from tests.models.nets import parsed, written

_BLOCKS_OF_8 = Target(isa="x86_64-avx2", block=8, onnxruntime="", exact_weights=64)


def passed(model: onnx.ModelProto, folder: Path, until: str, target: str = "plain") -> Compilation:
    """Return ``model`` after the passes up to ``until``."""
    source = written(model, folder / "m.onnx")
    work = folder / "work"
    work.mkdir()
    plain = Target(isa="aarch64-generic", block=1, onnxruntime="", exact_weights=64)
    compilation = Compilation(read_graph(source).graph, source, work, plain)
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
    work.graph = replace(work.graph, nodes=work.graph.nodes[::-1])


def _twice(work: Compilation) -> None:
    work.graph = replace(work.graph, nodes=(*work.graph.nodes, work.graph.nodes[-1]))


def _same_names(work: Compilation) -> None:
    nodes = tuple(node.replaced(name="n") for node in work.graph.nodes)
    work.graph = replace(work.graph, nodes=nodes)


def _no_output(work: Compilation) -> None:
    *nodes, last = work.graph.nodes
    work.graph = replace(work.graph, nodes=(*nodes, last.replaced(outputs=["z"])))


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
    work = passed(branches(), tmp_path, "keep-live")
    verify(work)
    work.graph = replace(
        work.graph, values={**work.graph.values, "a": Array(dtype="float32", shape=(1, 2))}
    )
    with pytest.raises(CompileError, match=r"value 'a' is .*, the graph says"):
        verify(work)


def test_types_that_rules_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = passed(branches(), tmp_path, "keep-live")
    shorter = NamedTensor(name="a", dtype="float32", shape=(1, 64, 16, 15))
    monkeypatch.setattr("models.compiler.passes.verify.results", lambda operator: (shorter,))
    with pytest.raises(CompileError, match=r"value 'a' is .* 16\)\), node 'a' makes .* 15\)\)"):
        verify(work)


def rules_give_what_onnxruntime_infers(seed: int, folder: Path) -> None:
    work = passed(cnn(seed), folder, "keep-live")
    verify(work)
    read = [node for node in work.graph.nodes if work.graph.operator(node)]
    assert len(read) > len(work.graph.nodes) // 2


def test_rules_give_what_onnxruntime_infers(tmp_path: Path) -> None:
    rules_give_what_onnxruntime_infers(0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 40))
def test_rules_give_what_onnxruntime_infers_of_many(seed: int, tmp_path: Path) -> None:
    rules_give_what_onnxruntime_infers(seed, tmp_path)


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
    graph = graph_of(model, tmp_path)
    work = Compilation(graph, tmp_path / "m.onnx", tmp_path, _BLOCKS_OF_8, step="optimised")
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
    graph = with_files(work.graph, work.folder / "constants.data")
    again = from_text(to_text(graph, work.folder), work.folder)
    assert [*map(_plain, again.nodes)] == [*map(_plain, graph.nodes)]
    for names in ("inputs", "outputs"):
        ports = getattr(graph, names)
        assert getattr(again, names) == ports
        assert [again.array(name) for name in ports] == [graph.array(name) for name in ports]
    assert again.constants.keys() == graph.constants.keys()
    for name, array in graph.constants.items():
        np.testing.assert_array_equal(again.constants[name], array)


def _plain(node: Node) -> tuple[object, ...]:
    return node.operator, node.inputs, node.outputs, sorted(node.attributes.items())
