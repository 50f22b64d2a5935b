"""What runs is what a plan says: so many launches, whatever joins steps and computes chains."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.pool.pool import ReadPool
from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import Pack, open_pack
from pipeline.devices.base import Kernel, Launch
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.device_memory import Memory
from pipeline.devices.elementwise.library import Library
from pipeline.devices.elementwise.one_pass import OnePass
from pipeline.execution.opened import opened
from pipeline.planning.joined_launches import joined
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.models.nets import CHUNK_BYTES, inputs_for, parsed
from tests.pipeline.devices.elementwise.chains import library, needs_library

# Between what joins: Ceil, Sin and Cast never do, chains where ONNX Runtime computes them.
_NODES = """
    a = Conv<pads=[1,1,1,1]>(x, wa)
    b = Relu(a)
    s = Softplus(b)
    t = Tanh(s)
    c = Mul(b, t)
    d = Conv<pads=[1,1,1,1]>(c, wb)
    e = Ceil(d)
    f = Conv<pads=[1,1,1,1]>(e, wb)
    u = Sigmoid(f)
    g = Mul(f, u)
    h = Add(g, b)
    i = Conv<pads=[1,1,1,1]>(h, wb)
    j = MaxPool<kernel_shape=[2,2]>(i)
    k = Sin(j)
    l = Conv(k, wc)
    y = Softmax<axis=1>(l)
"""
_SHAPES = {"wa": (32, 8, 3, 3), "wb": (32, 32, 3, 3), "wc": (16, 32, 1, 1)}


class _Counted(Kernel):
    """A kernel whose launches are counted; it keeps what the device keeps."""

    def __init__(self, kernel: Kernel, counted: Callable[[Launch], Launch]) -> None:
        self._kernel = kernel
        self._counted = counted

    def bind(
        self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Memory | None = None
    ) -> Launch:
        return self._counted(self._kernel.bind(inputs, outputs, scratch))


class _Device(CpuDevice):
    """Counts what it launches. ``chains``: computed by "onnxruntime", by "nodes" of it or a "library"."""

    def __init__(self, chains: str) -> None:
        super().__init__(1, native=False)
        self.launches = 0
        if chains != "onnxruntime":
            self.one_pass = _OnePass(
                library(), self._bind_chain if chains == "nodes" else None, self.counted
            )
            self._operators = library().path

    def kept(self, graph: bytes, make: Callable[[bytes], Kernel]) -> Kernel:
        return _Counted(super().kept(graph, make), self.counted)

    def counted(self, launch: Launch) -> Launch:
        def launched() -> None:
            self.launches += 1
            launch()

        return launched


class _OnePass(OnePass):
    """Counts what the library runs; what ONNX Runtime does, the device counts."""

    def __init__(
        self, found: Library, bind_model: Any, counted: Callable[[Launch], Launch]
    ) -> None:
        super().__init__(found, bind_model)
        self._counted = counted

    def bind(self, program: Any, arrays: Any, jobs: Any = None) -> Launch | None:
        launch = super().bind(program, arrays)  # not by a job, which would be counted again
        return launch if launch is None else self._counted(launch)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    folder = tmp_path_factory.mktemp("launches")
    model = parsed(f"m (float[1,8,49,45] x) => (float[1,16,48,44] y) {{ {_NODES} }}", _SHAPES)
    onnx.save(model, folder / "mixed.onnx")
    options = CompileOptions(chunk_bytes=CHUNK_BYTES)
    return open_pack(compile_onnx(folder / "mixed.onnx", folder / "mixed", options))


@pytest.fixture(scope="module")
def pool() -> Iterator[ReadPool]:
    with closing(ReadPool()) as made:
        yield made


@st.composite
def plans(draw: st.DrawFn, program: Program) -> Plan:
    architecture = ARCHITECTURES[draw(st.sampled_from(("pre", "2s", "auto", "seq")))]
    chunk = draw(st.sampled_from((None, CHUNK_BYTES)))
    spans = range(len(program.spans))
    plan = make_plan(
        program,
        architecture,
        choice=Choice(
            ring_bytes=None if architecture.resident else 64 << 10,
            chunk_bytes=chunk or (64 << 10),
            resident=tuple(sorted(draw(st.sets(st.sampled_from(spans))))),
        ),
    )
    return joined(program, plan, draw(st.none() | st.integers(0, 150_000)))


def _chains() -> list[Any]:
    native = (pytest.param(name, marks=needs_library) for name in ("nodes", "library"))
    return ["onnxruntime", *native]


@pytest.mark.parametrize("chains", _chains())
def test_as_many_launches_as_the_plan_says(pack: Pack, pool: ReadPool, chains: str) -> None:
    with closing(_Device(chains)) as device:
        fitted = prepare(pack, device)
        inputs = inputs_for({port.name: port.shape for port in Program.as_compiled(pack).inputs})
        expected: list[np.ndarray[Any, Any]] = []

        @settings(max_examples=12, deadline=None)
        @given(plans(fitted))
        def check(plan: Plan) -> None:
            with opened(fitted, plan, device, pool) as engine:
                device.launches = 0
                expected.append(np.array(engine.run(inputs)[0]["y"]))
                assert device.launches == plan.launches
            assert expected[0].tobytes() == expected[-1].tobytes()

        check()


@needs_library
def test_what_joins_depends_on_who_computes_chains(pack: Pack) -> None:
    launches = {}
    for chains in ("onnxruntime", "nodes", "library"):
        with closing(_Device(chains)) as device:
            program = prepare(pack, device)
            plan = joined(program, make_plan(program, ARCHITECTURES["pre"]))
            launches[chains] = plan.launches
    assert launches["nodes"] == launches["onnxruntime"] < launches["library"]


def test_what_no_device_was_asked_of_is_not_joined(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    plan = make_plan(program, ARCHITECTURES["pre"])
    assert joined(program, plan) == plan
