"""Packs of 8-bit integers on native kernels: the bits of ONNX Runtime, and memory as planned."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from PIL import Image

from models.compiler import CompileOptions
from models.images.preprocess import Preprocess
from models.packs.pack import Pack
from models.runtime.sessions import SessionError, open_piece, run_session
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.elementwise.operator_node import JOB_MODEL
from pipeline.execution.given import copies
from pipeline.execution.opened import opened
from pipeline.planning.plan import Plan
from pipeline.planning.smallest import smallest_plan
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.models.nets import parsed, written
from tests.models.streamed import compiled
from tests.pipeline.devices.elementwise.chains import library, needs_library

pytestmark = needs_library

SIZE = 48
RECIPE = Preprocess(size=(SIZE, SIZE), mean=(128.0,), std=(64.0,))


def _network(expansion: int) -> onnx.ModelProto:
    """Two tunnels on two patches that overlap, each a stem and two bottlenecks, the second with a sum."""
    inner = 16 * expansion
    text = ""
    weights: dict[str, tuple[int, ...]] = {"wg": (5, 16)}
    for at in range(2):
        text += f"""
            p{at} = Slice(x, start{at}, end{at}, axes)
            s{at} = Conv<strides=[2,2],pads=[1,1,1,1]>(p{at}, ws{at})
            a{at} = Conv(s{at}, wa{at})
            ar{at} = Relu(a{at})
            b{at} = Conv<strides=[2,2],pads=[1,1,1,1],group={inner}>(ar{at}, wb{at})
            br{at} = Relu(b{at})
            c{at} = Conv(br{at}, wc{at})
            d{at} = Conv(c{at}, wd{at})
            dr{at} = Relu(d{at})
            e{at} = Conv<pads=[1,1,1,1],group={inner}>(dr{at}, we{at})
            er{at} = Relu(e{at})
            f{at} = Conv(er{at}, wf{at})
            r{at} = Add(f{at}, c{at})
            m{at} = GlobalAveragePool(r{at})"""
        weights |= {
            f"ws{at}": (4, 3, 3, 3),
            f"wa{at}": (inner, 4, 1, 1),
            f"wb{at}": (inner, 1, 3, 3),
            f"wc{at}": (16, inner, 1, 1),
            f"wd{at}": (inner, 16, 1, 1),
            f"we{at}": (inner, 1, 3, 3),
            f"wf{at}": (16, inner, 1, 1),
        }
    places = {"start0": [0, 0], "end0": [34, 36], "start1": [12, 10], "end1": [46, 46]}
    model = parsed(
        f"""g (float[1,3,{SIZE},{SIZE}] x) => (float[1,5] y) {{{text}
            m = Add(m0, m1)
            v = Flatten(m)
            y = Gemm<transB=1>(v, wg)
        }}""",
        weights,
    )
    for name, numbers in (places | {"axes": [2, 3]}).items():
        array = np.array(numbers, np.int64)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def _pictures() -> Iterator[Image.Image]:
    generator = np.random.default_rng(0)
    for _ in range(3):
        yield Image.fromarray(generator.integers(0, 256, (SIZE, SIZE, 3)).astype(np.uint8))


def _compiled(folder: Path, expansion: int) -> Pack:
    source = written(_network(expansion), folder / f"m{expansion}.onnx")
    return compiled(source, folder, CompileOptions(preprocess=RECIPE, calibrate=_pictures))


def _plan(program: Program) -> Plan:
    return smallest_plan(program, ARCHITECTURES["2s"])


def _answers(pack: Pack, device: CpuDevice) -> list[NDArray[np.float32]]:
    """Return the answers to a tensor, to a picture whose rows are made when they are wanted, and again."""
    picture = next(_pictures())
    given = RECIPE.apply(picture), RECIPE.tensor(picture)
    fitted = prepare(pack, device)
    with opened(fitted, _plan(fitted), device) as engine:
        return [engine.answer({"x": each}, copies)[0]["y"] for each in (*given, given[0])]


def test_plans_hold_neither_image_nor_patches_nor_what_is_expanded(tmp_path: Path) -> None:
    device, plain = CpuDevice(2), CpuDevice(2, native=False)
    arenas, scratches = set(), set()
    for expansion in (2, 6):
        pack = _compiled(tmp_path, expansion)
        fitted = prepare(pack, device)
        assert sum(piece.reads_rows for piece in fitted.pieces) == 2
        plan = _plan(fitted)
        assert plan.arena_bytes < 3 * SIZE * SIZE < _plan(prepare(pack, plain)).arena_bytes
        arenas.add(plan.arena_bytes)
        scratches.add(plan.scratch_bytes)
        assert np.array_equal(_answers(pack, device), _answers(pack, plain))
    assert (len(arenas), len(scratches)) == (1, 1)


def test_a_layer_of_which_only_maxima_are_read_lies_in_no_plan(tmp_path: Path) -> None:
    """Of an image by rows, and behind an activation and a concatenation that come after the maxima now."""
    pool = "MaxPool<kernel_shape=[2,2], strides=[2,2]>"
    model = parsed(
        f"""g (float[1,3,{SIZE},{SIZE}] x) => (float[1,5] y) {{
            a = Conv<pads=[1,1,1,1]>(x, wa)
            b = LeakyRelu<alpha=0.1>(a)
            c = {pool}(b)
            d = Conv<pads=[1,1,1,1]>(c, wd)
            e = Conv(c, we)
            f = Concat<axis=1>(d, e)
            h = {pool}(f)
            m = GlobalAveragePool(h)
            v = Flatten(m)
            y = Gemm<transB=1>(v, wg)
        }}""",
        {"wa": (32, 3, 3, 3), "wd": (32, 32, 3, 3), "we": (16, 32, 1, 1), "wg": (5, 48)},
    )
    options = CompileOptions(preprocess=RECIPE, calibrate=_pictures)
    pack = compiled(written(model, tmp_path / "m.onnx"), tmp_path, options)
    device, plain = CpuDevice(2), CpuDevice(2, native=False)
    arena = _plan(prepare(pack, device)).arena_bytes
    assert arena < 32 * SIZE * SIZE < _plan(prepare(pack, plain)).total_bytes
    assert np.array_equal(_answers(pack, device), _answers(pack, plain))


def test_neither_a_concatenation_nor_what_is_added_lies_beside_what_is_made_of_it(
    tmp_path: Path,
) -> None:
    """As in a CSP network: two routes, one with a residual, both with an activation, put together."""
    mish = "{0}s = Softplus({0}c) {0}t = Tanh({0}s) {0} = Mul({0}c, {0}t)".format
    model = parsed(
        f"""g (float[1,3,{SIZE},{SIZE}] x) => (float[1,5] y) {{
            ac = Conv<pads=[1,1,1,1]>(x, wa) {mish("a")}
            bc = Conv(a, wb) {mish("b")}
            cc = Conv(b, wc) {mish("c")}
            dc = Conv<pads=[1,1,1,1]>(c, wd) {mish("d")}
            e = Add(b, d)
            fc = Conv(a, wf) {mish("f")}
            h = Concat<axis=1>(e, f)
            kc = Conv(h, wk) {mish("k")}
            m = GlobalAveragePool(k)
            v = Flatten(m)
            y = Gemm<transB=1>(v, wg)
        }}""".replace(") ", ")\n"),
        {
            "wa": (32, 3, 3, 3),
            "wb": (32, 32, 1, 1),
            "wc": (16, 32, 1, 1),
            "wd": (32, 16, 3, 3),
            "wf": (32, 32, 1, 1),
            "wk": (32, 64, 1, 1),
            "wg": (5, 32),
        },
    )
    options = CompileOptions(preprocess=RECIPE, calibrate=_pictures)
    pack = compiled(written(model, tmp_path / "m.onnx"), tmp_path, options)
    device, plain = CpuDevice(2), CpuDevice(2, native=False)
    # Both routes, and what is made of them.
    assert _plan(prepare(pack, device)).arena_bytes <= 3 * 32 * SIZE * SIZE
    assert np.array_equal(_answers(pack, device), _answers(pack, plain))


def test_what_a_request_gives_in_another_form_is_not_taken_by_rows(tmp_path: Path) -> None:
    pack = _compiled(tmp_path, 2)
    (port,) = pack.manifest.inputs
    flat = replace(port, shape=(1, 3, SIZE * SIZE, 1))
    manifest = replace(pack.manifest, inputs=(flat,))
    fitted = prepare(replace(pack, manifest=manifest), CpuDevice(2))
    assert not any(piece.reads_rows for piece in fitted.pieces)


def test_a_graph_alone_has_no_job() -> None:
    session = open_piece(JOB_MODEL, operators=library().path)
    with pytest.raises(SessionError, match="no job"):
        run_session(session, {"x": np.zeros(1, np.float32)})
