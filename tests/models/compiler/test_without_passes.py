"""Without a pass that is not required there is a pack, and it answers within the pass's own class of error.

Networks are drawn (cnns.py); only passes that change one are left out.
"""

from pathlib import Path

import pytest

from models.compiler import CompileOptions, compile_onnx
from models.compiler.passes.explain import Explaining, PassChange
from models.compiler.passes.record import Error
from models.compiler.passes.run import Observer
from models.packs.pack import Pack, open_pack
from pipeline.checking.compare import difference
from pipeline.checking.comparison import Tolerance
from pipeline.measuring.sweeps import random_inputs
from tests.models.compiler.cnns import cnn
from tests.models.nets import written
from tests.models.streamed import streamed

_CHUNK_BYTES = 8192
# The network of which the fewest passes change something.
_FAST = 6
_TOLERANCES: dict[Error, Tolerance] = {
    "same bits": Tolerance(0.0),
    "other order of sums": Tolerance(1e-5),
    "within a bound": Tolerance(1e-4),
}


def packed(source: Path, folder: Path, without: tuple[str, ...], *observers: Observer) -> Pack:
    options = CompileOptions(
        chunk_bytes=_CHUNK_BYTES, force=True, without=without, observers=observers
    )
    return open_pack(compile_onnx(source, folder / "r" / "net", options))


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=pytest.mark.slow if n != _FAST else ()) for n in range(12)]
)
def test_answers_without_a_pass(seed: int, tmp_path: Path) -> None:
    source = written(cnn(seed), tmp_path / "net.onnx")
    explaining = Explaining()
    pack = packed(source, tmp_path, (), explaining)
    inputs = random_inputs(pack.manifest, 1)
    expected = streamed(pack, inputs)
    excluded = {
        change.name: change
        for change in explaining.changes
        if not (change.required or change.is_none)
    }
    assert excluded
    faults = {}
    for name, change in excluded.items():
        answers = streamed(packed(source, tmp_path, (name,)), inputs)
        faults[name] = difference(answers, expected, _TOLERANCES[change.error])
    assert not {name: fault for name, fault in faults.items() if fault}


def test_a_pass_with_an_effect_is_explained(tmp_path: Path) -> None:
    explaining = Explaining()
    packed(written(cnn(2), tmp_path / "net.onnx"), tmp_path, ("layout",), explaining)
    changes: dict[str, PassChange] = {}
    for change in explaining.changes:
        changes.setdefault(change.name, change)
    assert "layout" not in changes
    assert changes["split-crops"].added == {"Slice": 1}
    assert changes["order-nodes"].moved
    assert changes["cut"].counts["pieces"] > 0
    assert changes["check-ports"].is_none
    before, after = changes["store-by-row"].nodes
    assert before == after
    assert changes["store-by-row"].added == {"Gemm": 1}
    assert changes["store-by-row"].removed == {"MatMul": 1}
