"""A network with chains, in the engine: with the library and without, whole and on rows, by any threads."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from loader.pool.pool import ReadPool
from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import Pack, open_pack
from models.packs.records.pieces import Piece
from models.packs.records.row_parts import RowOperator
from models.packs.target import host_target
from pipeline.devices.base import Launch
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.elementwise.programs import native_program
from pipeline.devices.interface.native import MAX_TENSORS
from pipeline.execution.opened import opened
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.program.region_plan import Region, RowCut
from pipeline.program.steps import row_network
from pipeline.schedule.architectures import ARCHITECTURES
from tests.models.nets import CHUNK_BYTES, inputs_for, parsed
from tests.pipeline.devices.elementwise.chains import Floats, needs_library
from tests.pipeline.program.regions import largest_regions

pytestmark = needs_library

_NODES = """
    modulo = Mod<fmod=1>(x, half)
    turned = Neg(modulo)
    a = Conv<pads=[1,1,1,1]>(turned, wa)
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
    i = Conv(more, wd)
    celu = Celu<alpha=0.7>(i)
    j = Conv(celu, wd)
    k = Softsign(j)
    softsign = Neg(k)
    l = Conv(softsign, wd)
    larger = Max(l, celu)
    smaller = Min(half, larger)
    y = Conv(smaller, we)
"""
_SHAPES = {"wa": (32, 8, 3, 3), "wb": (32, 32, 3, 3), "wc": (32, 32, 3, 3)} | {
    "wd": (32, 32, 1, 1),
    "we": (16, 32, 1, 1),
}
_KINDS = {"mish", "add", "silu", "gelu", "negative", "celu", "softsign", "larger", "smaller"} | {
    "modulo"
}


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return compiled(_NODES, _SHAPES, tmp_path_factory.mktemp("chains"))


def constants() -> Iterator[onnx.TensorProto]:
    for name, number in {"root": 2**0.5, "scale": 0.5**0.5, "one": 1.0, "half": 0.5}.items():
        yield onnx.numpy_helper.from_array(np.array(number, np.float32), name)


def compiled(
    nodes: str, shapes: Mapping[str, tuple[int, ...]], folder: Path, made: str = "49,45"
) -> Pack:
    model = parsed(f"m (float[1,8,49,45] x) => (float[1,16,{made}] y) {{ {nodes} }}", shapes)
    model.graph.initializer.extend(constants())
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
    inputs = inputs_for({port.name: port.shape for port in pack.manifest.inputs})
    with closing(CpuDevice(threads, native=native)) as device:
        program = prepare(pack, device)
        plan = make_plan(program, ARCHITECTURES["pre"], choice=Choice(regions=regions))
        assert (device.one_pass is not None) == native
        with opened(program, plan, device, pool) as engine:
            return np.array(engine.run(inputs)[0]["y"])


def kinds(pack: Pack, items: Iterable[Piece | RowOperator]) -> list[list[str]]:
    """Return the steps of those of ``items`` that have a program."""
    programs = pack.manifest.programs
    found = [item.elementwise for item in items if item.elementwise]
    return [[step.kind for step in programs[item.program].steps] for item in found]


def test_chains_have_programs(pack: Pack) -> None:
    assert {*chain.from_iterable(kinds(pack, pack.manifest.pieces))} >= _KINDS
    if host_target().block > 1:
        on_rows = kinds(pack, pack.manifest.row_operators)
        assert {*chain.from_iterable(on_rows)} >= _KINDS - {"softsign"}  # an uneven one
        assert [] in on_rows


def test_the_answer_is_that_of_onnx_runtime(pack: Pack, pool: ReadPool) -> None:
    found, expected = answer(pack, pool), answer(pack, pool, native=False)
    assert not np.array_equal(found, expected)  # or nothing was computed otherwise
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def exact_regions(pack: Pack, rows: int) -> tuple[Region, ...]:
    """Return the largest regions, where rows have the bits of the whole."""
    network = row_network(Program.as_compiled(pack))
    return largest_regions(network, RowCut(rows)) if host_target().block > 1 else ()


def test_rows_and_threads_change_no_bit(pack: Pack, pool: ReadPool) -> None:
    expected = answer(pack, pool).tobytes()
    for rows, threads in ((1, 1), (3, None), (8, 2)):
        regions = exact_regions(pack, rows)
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

    monkeypatch.setattr(CpuDevice, "_bind_chain", counted)
    for regions in ((), exact_regions(pack, 8)):
        assert answer(pack, pool, regions, 2).tobytes() == expected
    assert chains


@pytest.mark.slow
@pytest.mark.parametrize("steps", [60, 200])
@pytest.mark.parametrize("tensors", [2, MAX_TENSORS, MAX_TENSORS + 1, 40])
def test_long_chains_of_many_tensors(
    steps: int, tensors: int, tmp_path: Path, pool: ReadPool
) -> None:
    """Of more tensors than the library takes ONNX Runtime computes them."""
    others = [f"t{index}" for index in range(tensors - 2)]  # and what is read first, and a result
    shapes = {**_SHAPES, "wf": (32, 8 + 32 * len(others), 3, 3)}
    shapes |= {f"w{name}": (32, 8, 1, 1) for name in others}
    nodes = [f"{name} = Conv(x, w{name})" for name in others]
    # All of them are read before the chain: it is not interrupted by what makes them.
    nodes += [f"all = Concat<axis=1>({', '.join(['x', *others])})"]
    nodes += ["e0 = Conv<pads=[1,1,1,1]>(all, wf)"]
    for index in range(steps):
        read = f"e{index}"
        if index % 5 == 0 and others:
            nodes.append(f"e{index + 1} = Max({read}, {others.pop()})")
        else:
            nodes.append(f"e{index + 1} = {('Sigmoid', 'Tanh', 'Neg')[index % 3]}({read})")
    while others:
        nodes.append(f"e{steps + 1} = Add(e{steps}, {others.pop()})")
        steps += 1
    pack = compiled("\n".join([*nodes, f"y = Conv(e{steps}, we)"]), shapes, tmp_path)
    program = max(pack.manifest.programs, key=lambda program: len(program.steps))
    assert len(program.steps) >= steps - 1  # the first may be part of the convolution
    assert program.n_inputs + len(program.results) == tensors
    assert (native_program(program) is not None) == (tensors <= MAX_TENSORS)
    expected = answer(pack, pool, threads=1)
    plain = answer(pack, pool, native=False)
    np.testing.assert_allclose(expected, plain, rtol=0, atol=1e-5 * np.abs(plain).max())
    for rows, threads in ((None, 2), (None, 3), (8, 1), (8, 2), (8, 3)):
        regions = exact_regions(pack, rows) if rows else ()
        assert answer(pack, pool, regions, threads).tobytes() == expected.tobytes()


def test_where_onnx_runtime_does_not_take_the_operator_its_threads_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pipeline.devices.cpu.why_not_shared", lambda _: "it is too old")
    for threads, native in ((2, False), (1, True)):
        with closing(CpuDevice(threads)) as device:
            assert (device.one_pass is not None) == native
