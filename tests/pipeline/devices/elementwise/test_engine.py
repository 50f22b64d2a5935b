"""A network with chains, in the engine: with the library and without, whole and on rows, by any threads."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from loader.pool.pool import ReadPool
from models.compiler import CompileOptions, compile_onnx
from models.packs.manifest import Manifest
from models.packs.pack import Pack, open_pack
from models.packs.target import host_target
from pipeline.devices.base import Launch
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.elementwise.of_pack import PackPrograms, row_ports
from pipeline.devices.elementwise.programs import Step
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
        pack = device.fitted(pack)
        plan = make_plan(pack.manifest, ARCHITECTURES["pre"], choice=Choice(regions=regions))
        assert (device.one_pass is not None) == native
        with opened(pack, plan, device, pool) as engine:
            return np.array(engine.run(inputs)[0]["y"])


def test_chains_are_recognised(pack: Pack) -> None:
    programs = PackPrograms(pack.manifest, pack.graphs)
    found = [programs.piece(piece) for piece in pack.manifest.pieces]
    steps = [step.operator for program in found if program for step in program.steps]
    assert set(steps) >= _STEPS
    if host_target().block > 1:
        assert {step.operator for step in steps_on_rows(programs, pack)} >= _STEPS
        rows = [programs.row_operator(number) for number in range(len(pack.manifest.row_operators))]
        assert any(program is not None and not program.steps for program in rows)


def steps_on_rows(programs: PackPrograms, pack: Pack) -> list[Step]:
    rows = [programs.row_operator(number) for number in range(len(pack.manifest.row_operators))]
    return [step for program in rows if program for step in program.steps]


def in_one_piece(pack: Pack) -> tuple[Manifest, list[bytes]]:
    """Return the pack of the test below as the compiler makes none: the pieces of its GELU are one."""
    manifest = pack.manifest
    port = "float[1,32,49,45]"
    nodes = "h = Mul(x, half) e = Mul(x, scale) f = Erf(e) g = Add(f, one) y = Mul(h, g)"
    model = parsed(f"m ({port} x) => ({port} y) {{ {nodes} }}")
    model.graph.initializer.extend(constants())
    whole = replace(manifest.pieces[1], graph=len(pack.graphs))
    whole = replace(whole, inputs=whole.inputs[:1], outputs=whole.outputs[:1])
    alike = (replace(item, first_piece=1, end_piece=2) for item in manifest.row_operators[1:6])
    operators = (manifest.row_operators[0], *alike, *manifest.row_operators[6:])
    pieces = (manifest.pieces[0], whole, *manifest.pieces[2:])
    values = [replace(value, parent=None) for value in manifest.values]  # it lies over x / 2
    changed = {"row_operators": operators, "pieces": pieces, "values": tuple(values)}
    return manifest.model_copy(update=changed), [*pack.graphs, model.SerializeToString()]


@pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")
def test_what_reads_two_values_of_a_step_hands_its_result_on(tmp_path: Path) -> None:
    """GELU as x / 2 * (1 + erf): its last operator reads two values, and one of them is the result."""
    nodes = "e = Mul(a, scale) h = Mul(a, half) f = Erf(e) g = Add(f, one) gelu = Mul(h, g)"
    text = f"a = Conv(x, wa) {nodes} y = Conv(gelu, wb)"
    pack = compiled(text, {"wa": (32, 8, 1, 1), "wb": (16, 32, 1, 1)}, tmp_path)
    manifest, graphs = in_one_piece(pack)
    programs = PackPrograms(manifest, graphs)
    found: dict[str, list[tuple[str, ...]]] = {}
    for number, item in enumerate(manifest.row_operators[1:6], 1):
        program = programs.row_operator(number)
        name = manifest.row_values[item.output].name.removesuffix("/blocked")
        assert program is not None
        found[name] = [(step.operator, *step.operands) for step in program.steps]
    (result,) = row_ports(manifest.row_operators[2])[1]
    # What is read last of e and h makes it, and the two between have nothing to do or hand it on.
    assert found == {
        "h": [],
        "e": [("gelu", "r1")],
        "f": [("copy", result)],
        "g": [("copy", "r4")],
        "gelu": [("copy", "r5")],
    }


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
