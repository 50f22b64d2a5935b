"""A pass that makes a network wrong is named; one that only rounds otherwise, as it says, is not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from models.compiler.passes.record import Compilation, Error, Pass
from models.compiler.passes.run import run
from models.compiler.passes.table import TARGETS
from models.errors import CompileError
from models.graphs.onnx_reader import read_graph
from pipeline.checking.find_fault import FaultFinder
from tests.models.compiler.cnns import cnn
from tests.models.nets import parsed, written


def _scaled(by: float, error: Error) -> Pass:
    """Return a pass that multiplies a small weight."""

    def scale(work: Compilation) -> None:
        constants = {**work.graph.constants, "w": work.graph.constants["w"] * np.float32(by)}
        work.graph = replace(work.graph, constants=constants)

    return Pass(
        name="scale",
        reason="",
        needs=(),
        level="meaning",
        error=error,
        required=False,
        run=scale,
    )


def _network(operator: str) -> onnx.ModelProto:
    text = f"small (float[1,2,4,4] x) => (float[1,2,4,4] y) {{ a = Conv(x, w) y = {operator}(a) }}"
    return parsed(text, {"w": (2, 2, 1, 1)})


def _find(model: onnx.ModelProto, folder: Path, *wrong: Pass) -> None:
    source = written(model, folder / "m.onnx")
    (folder / "work").mkdir()
    passes = list(TARGETS["plain"])
    start = next(index for index, step in enumerate(passes) if step.name == "infer-types")
    work = Compilation(read_graph(source).graph, source, folder / "work")
    run(work, [*passes[:start], *wrong, *passes[start:]], observers=[FaultFinder()])


@pytest.mark.parametrize(
    ("by", "error"),
    [(1.01, "within a bound"), (1.00005, "other order of sums"), (1 + 1e-6, "same bits")],
)
def test_the_pass_at_fault_is_named(by: float, error: Error, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=f"'scale' output 'y' is off by .* class is: {error}"):
        _find(_network("Relu"), tmp_path, _scaled(by, error))


def test_what_a_pass_may_change_is_no_fault(tmp_path: Path) -> None:
    _find(_network("Relu"), tmp_path, _scaled(1 + 2**-23, "other order of sums"))


def test_no_pass_of_the_compiler_is_at_fault(tmp_path: Path) -> None:
    _find(cnn(3), tmp_path)


def test_networks_that_draw_numbers_are_not_compared(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="draws numbers: nothing to compare"):
        _find(_network("Bernoulli"), tmp_path)
