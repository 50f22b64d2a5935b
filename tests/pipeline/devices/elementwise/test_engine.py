"""A network with chains, in the engine: with the library and without, whole and on rows, by any threads."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import onnx
import pytest

from loader.pool.pool import ReadPool
from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import Pack, open_pack
from models.packs.target import host_target
from pipeline.devices.base import Launch
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.elementwise.of_pack import PackPrograms
from pipeline.execution.opened import opened
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.program.regions import Region
from pipeline.program.steps import row_network
from pipeline.schedule.architectures import ARCHITECTURES
from tests.models.nets import CHUNK_BYTES, inputs_for, parsed
from tests.pipeline.devices.elementwise.chains import Floats, needs_library
from tests.pipeline.program.regions import largest_regions

pytestmark = needs_library

_NODES = """
    a = Conv<pads=[1,1,1,1]>(x, wa)
    s = Softplus(a)
    t = Tanh(s)
    mish = Mul(a, t)
    sum = Add(mish, a)
    b = Conv<pads=[1,1,1,1]>(sum, wb)
    u = Sigmoid(b)
    silu = Mul(b, u)
    gated = Add(silu, b)
    c = Conv<pads=[1,1,1,1]>(gated, wc)
    v = Neg(c)
    w = Tanh(v)
    d = Conv(w, wd)
    e = Div(d, root)
    f = Erf(e)
    g = Add(f, one)
    h = Mul(d, g)
    gelu = Mul(h, half)
    more = Add(gelu, d)
    y = Conv(more, we)
"""
_SHAPES = {"wa": (32, 8, 3, 3), "wb": (32, 32, 3, 3), "wc": (32, 32, 3, 3)} | {
    "wd": (32, 32, 1, 1),
    "we": (16, 32, 1, 1),
}
_STEPS = {"mish", "add", "silu", "gelu", "negative"}


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    folder = tmp_path_factory.mktemp("chains")
    model = parsed(f"m (float[1,8,49,45] x) => (float[1,16,49,45] y) {{ {_NODES} }}", _SHAPES)
    for name, number in {"root": 2**0.5, "one": 1, "half": 0.5}.items():
        tensor = onnx.numpy_helper.from_array(np.array(number, np.float32), name)
        model.graph.initializer.append(tensor)
    onnx.save(model, folder / "chains.onnx")
    options = CompileOptions(chunk_bytes=CHUNK_BYTES)
    return open_pack(compile_onnx(folder / "chains.onnx", folder / "chains", options))


@pytest.fixture(scope="module")
def pool() -> Iterator[ReadPool]:
    with closing(ReadPool()) as made:
        yield made


def answer(
    pack: Pack,
    pool: ReadPool,
    regions: tuple[Region, ...] = (),
    threads: int | None = None,
    native: bool = True,
) -> Floats:
    plan = make_plan(pack.manifest, ARCHITECTURES["pre"], choice=Choice(regions=regions))
    inputs = inputs_for({port.name: port.shape for port in pack.manifest.inputs})
    with closing(CpuDevice(threads, native=native)) as device:
        assert (device.one_pass is not None) == native
        with opened(pack, plan, device, pool) as engine:
            return np.array(engine.run(inputs)[0]["y"])


def test_chains_are_recognised(pack: Pack) -> None:
    programs = PackPrograms(pack.manifest, pack.graphs)
    found = [programs.piece(piece) for piece in pack.manifest.pieces]
    steps = [step.operator for program in found if program for step in program.steps]
    assert set(steps) >= _STEPS
    rows = [programs.row_operator(number) for number in range(len(pack.manifest.row_operators))]
    on_rows = [step.operator for program in rows if program for step in program.steps]
    if host_target().block > 1:
        assert set(on_rows) >= _STEPS
        assert any(program is not None and not program.steps for program in rows)


def test_the_answer_is_that_of_onnx_runtime(pack: Pack, pool: ReadPool) -> None:
    found, expected = answer(pack, pool), answer(pack, pool, native=False)
    assert not np.array_equal(found, expected)  # or nothing was computed otherwise
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_rows_and_threads_change_no_bit(pack: Pack, pool: ReadPool) -> None:
    expected = answer(pack, pool).tobytes()
    network = row_network(pack.manifest)
    for rows, threads in ((1, 1), (3, None), (8, 2)):
        regions = largest_regions(network, rows) if host_target().block > 1 else ()
        assert answer(pack, pool, regions, threads).tobytes() == expected


def test_threads_of_onnx_runtime_change_no_bit(
    pack: Pack, pool: ReadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answer(pack, pool).tobytes()
    chains: list[bytes] = []
    bind_chain = CpuDevice._bind_chain

    def counted(device: CpuDevice, graph: bytes, *arrays: Any) -> Launch:
        chains.append(graph)
        return bind_chain(device, graph, *arrays)

    monkeypatch.setattr("pipeline.devices.cpu.pool_is_shared", lambda: True)
    monkeypatch.setattr(CpuDevice, "_bind_chain", counted)
    for regions in ((), largest_regions(row_network(pack.manifest), 8)):
        assert answer(pack, pool, regions, 2).tobytes() == expected
    assert chains


def test_where_onnx_runtime_does_not_take_the_operator_its_threads_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pipeline.devices.cpu.pool_is_shared", lambda: True)
    monkeypatch.setattr("pipeline.devices.cpu.why_not_shared", lambda _: "it is too old")
    for threads, native in ((2, False), (1, True)):
        with closing(CpuDevice(threads)) as device:
            assert (device.one_pass is not None) == native
