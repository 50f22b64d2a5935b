"""The graph that becomes C: nothing in blocks, nothing that streams, the same answers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from models.compiler.for_c import graph_for_c
from models.compiler.sources import SourceOptions
from models.errors import CompileError
from models.network.names import PLAIN_DOMAINS
from tests.models.compiler.optimising.test_quantised import qlinear
from tests.models.nets import answers, parsed, residual, written


def filled() -> onnx.ModelProto:
    """Channels that fill no block, and a softmax along them."""
    text = "g (float[1,3,4,5] x) => (float y) { a = Conv(x, w)\n b = Conv(a, v)\n y = Softmax<axis=1>(b) }"
    return parsed(text, {"w": (20, 3, 1, 1), "v": (20, 20, 1, 1)})


@pytest.mark.parametrize("model", [residual, filled, qlinear])
def test_it_is_as_the_source_but_for_what_onnx_runtime_fuses(
    model: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    source = written(model(), tmp_path / "m.onnx")
    (tmp_path / "work").mkdir()
    result = graph_for_c(source, tmp_path / "work", SourceOptions())
    operators = [node.op_type for node in onnx.load(source).graph.node]
    assert {node.domain for node in result.graph.nodes} <= set(PLAIN_DOMAINS)
    kinds = [node.op_type for node in result.graph.nodes]
    # No windows, parts or tables of layers that stream, no transposes around a softmax.
    assert {"Gather", "Concat"}.isdisjoint(kinds)
    assert kinds.count("Softmax") == operators.count("Softmax")
    assert len(kinds) <= len(operators) + 2 * len(result.graph.inputs + result.graph.outputs)
    (name,) = result.graph.inputs
    array = result.graph.array(name)
    drawn = 20 * np.random.default_rng(0).standard_normal(array.shape)
    inputs = {name: (abs(drawn) if array.dtype == "uint8" else drawn / 20).astype(array.dtype)}
    for output, expected in answers(source, inputs, optimise=True).items():
        scale = float(np.abs(expected).max())
        np.testing.assert_allclose(
            answers(result.written(), inputs)[output], expected, 0, 1e-5 * scale
        )


def test_a_disk_that_is_too_full_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = written(residual(), tmp_path / "m.onnx")
    (tmp_path / "work").mkdir()
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Full", (), {"free": 1000}))
    with pytest.raises(CompileError, match=r"no space to compile m\.onnx: needs .* MiB"):
        graph_for_c(source, tmp_path / "work", SourceOptions())
