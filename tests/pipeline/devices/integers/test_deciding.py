"""What a device decides of quantised pieces is what plans count, and what is bound and run."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from models.compiler import CompileOptions
from models.images.preprocess import Preprocess
from models.packs.pack import Pack
from pipeline.devices.base import Kernel
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.elementwise.operator_node import JOB_MODEL
from pipeline.execution.given import Tensors, copies
from pipeline.execution.opened import opened
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.program.kernels import IntegerTask, OrtGraph
from pipeline.program.prepare import prepare
from pipeline.program.program import PreparedPiece, Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import examples
from tests.models.nets import parsed, written
from tests.models.streamed import compiled
from tests.pipeline.devices.elementwise.chains import needs_library

pytestmark = needs_library

SIZE, CLASSES = 32, 512
RECIPE = Preprocess(size=(SIZE, SIZE), mean=(128.0,), std=(64.0,))


class _Watched(CpuDevice):
    """Remembers of which graphs it was asked for sessions."""

    def __init__(self, threads: int, native: bool) -> None:
        super().__init__(threads, native=native)
        self.sessions: set[bytes] = set()

    def kept(self, graph: bytes, make: Callable[[bytes], Kernel]) -> Kernel:
        self.sessions.add(graph)
        return super().kept(graph, make)


def _pictures() -> Iterator[Image.Image]:
    generator = np.random.default_rng(0)
    for _ in range(3):
        yield Image.fromarray(generator.integers(0, 256, (SIZE, SIZE, 3)).astype(np.uint8))


class Case:
    """A pack, and what ONNX Runtime alone answers; Hypothesis would print all of them."""

    def __init__(self, pack: Pack) -> None:
        program = Program.as_compiled(pack)
        self.pack = pack
        plan = make_plan(program, ARCHITECTURES["2s"])
        with opened(program, plan, CpuDevice(1, native=False)) as engine:
            self.expected = engine.answer(_request(), copies)[0]["y"]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A bottleneck with a sum, an average, and a product in chunks."""
    model = parsed(
        f"""g (float[1,3,{SIZE},{SIZE}] x) => (float[1,{CLASSES}] y) {{
            s = Conv<strides=[2,2],pads=[1,1,1,1]>(x, ws)
            d = Conv(s, wd)
            dr = Relu(d)
            e = Conv<pads=[1,1,1,1],group=96>(dr, we)
            er = Relu(e)
            f = Conv(er, wf)
            r = Add(f, s)
            m = GlobalAveragePool(r)
            v = Flatten(m)
            y = Gemm<transB=1>(v, wg)
        }}""",
        {
            "ws": (32, 3, 3, 3),
            "wd": (96, 32, 1, 1),
            "we": (96, 1, 3, 3),
            "wf": (32, 96, 1, 1),
            "wg": (CLASSES, 32),
        },
    )
    folder = tmp_path_factory.mktemp("deciding")
    options = CompileOptions(preprocess=RECIPE, calibrate=_pictures, chunk_bytes=4 << 10)
    return Case(compiled(written(model, folder / "m.onnx"), folder, options))


def _request() -> Tensors:
    return {"x": RECIPE.tensor(next(_pictures()))}


def _as_it_is(pack: Pack) -> Pack:
    return pack


def _over(pack: Pack) -> Pack:
    """Return ``pack`` with the bottleneck's result over what it adds, which dies there."""
    pieces = (each for each in pack.manifest.pieces if each.span is not None)
    piece = next(each for each in pieces if each.outputs[0].shape == each.inputs[0].shape)
    values = list(pack.manifest.values)
    made = piece.outputs[0].index
    values[made] = replace(values[made], parent=piece.inputs[0].index)
    return _with(pack, values=tuple(values))


def _with(pack: Pack, **changed: Any) -> Pack:
    return replace(pack, manifest=replace(pack.manifest, **changed))


class Way(NamedTuple):
    """How a pack is opened."""

    threads: int
    native: bool
    lanes: int
    chunk_bytes: int | None
    architecture: str
    crafted: Callable[[Pack], Pack]


WAYS = st.builds(
    Way,
    st.integers(1, 2),
    st.booleans(),
    st.integers(1, 2),
    st.sampled_from([1, None]),
    st.sampled_from(["pre", "2s"]),
    st.sampled_from([_as_it_is, _over]),
)


@examples(6, many=500)
@given(way=WAYS)
def test_what_runs_is_what_was_counted(case: Case, way: Way) -> None:
    device = _Watched(way.threads, way.native)
    fitted = prepare(way.crafted(case.pack), device)
    choice = Choice(chunk_bytes=way.chunk_bytes, lanes=way.lanes)
    plan = make_plan(fitted, ARCHITECTURES[way.architecture], choice=choice)
    pieces = [step for step in plan.steps if isinstance(step, PreparedPiece)]
    natives = [piece.kernel for piece in pieces if isinstance(piece.kernel, IntegerTask)]
    assert bool(natives) == way.native
    counted = {
        case.pack.graphs[piece.kernel.graph]
        for piece in pieces
        if isinstance(piece.kernel, OrtGraph)
    }
    if any(each.together_bytes for each in natives):
        assert way.threads > 1
        counted.add(JOB_MODEL)
    with opened(fitted, plan, device) as engine:
        assert device.sessions == counted
        answer = engine.answer(_request(), copies)[0]["y"]
        assert device.sessions == counted  # no request loads one
    assert np.array_equal(answer, case.expected)
