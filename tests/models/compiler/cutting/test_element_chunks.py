"""A constant that is added to all tokens streams in chunks, as weights of layers do."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest

from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import Pack, open_pack
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.opened import opened
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.program.prepare import prepare
from pipeline.schedule.architectures import ARCHITECTURES
from tests.models.compiler.cutting.test_tables import drawn, network

CHUNK_BYTES = 16 << 10
POSITIONS = drawn(65, 200)


def added(body: str = "y = Add(x, w)", shape: str = "1,65,200") -> onnx.ModelProto:
    return network(f"g (float[{shape}] x) => (float[{shape}] y) {{ {body} }}", w=POSITIONS)


def compiled(model: onnx.ModelProto, folder: Path) -> Pack:
    onnx.save(model, folder / "g.onnx")
    options = CompileOptions(chunk_bytes=CHUNK_BYTES)
    return open_pack(compile_onnx(folder / "g.onnx", folder / "g", options))


@pytest.fixture(scope="module")
def device() -> Iterator[CpuDevice]:
    with closing(CpuDevice(1)) as device:
        yield device


BODIES: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "added": ("y = Add(x, w)", lambda x: x + POSITIONS),
    "in the other order": ("y = Sub(w, x)", lambda x: POSITIONS - x),
    "over what another made": (
        "a = Add(x, x) b = Add(a, w) y = Add(b, b)",
        lambda x: (x + x + POSITIONS) * np.float32(2),
    ),
    "read again": ("a = Add(x, w) y = Add(a, x)", lambda x: x + POSITIONS + x),
}


@pytest.mark.parametrize("case", sorted(BODIES))
def test_chunks_have_the_bits_of_the_layer(case: str, tmp_path: Path, device: CpuDevice) -> None:
    body, expected = BODIES[case]
    pack = compiled(added(body), tmp_path)
    streamed = [piece for piece in pack.manifest.pieces if piece.span is not None]
    assert len(streamed) == -(-POSITIONS.nbytes // CHUNK_BYTES)
    assert pack.manifest.largest_chunk_bytes == CHUNK_BYTES
    x = np.random.default_rng(0).standard_normal((1, 65, 200), np.float32)
    program = prepare(pack, device)
    for plan in (
        make_plan(program, ARCHITECTURES["2s"], choice=Choice(ring_bytes=CHUNK_BYTES)),
        make_plan(program, ARCHITECTURES["pre"]),
    ):
        with opened(program, plan, device) as engine:
            assert np.array_equal(engine.run({"x": x})[0]["y"], expected(x))


def test_the_constant_is_one_range_of_the_file(tmp_path: Path) -> None:
    pack = compiled(added(), tmp_path)
    offsets = [
        pack.manifest.spans[piece.span].offset
        for piece in pack.manifest.pieces
        if piece.span is not None
    ]
    content = pack.weights_path.read_bytes()[offsets[0] :]
    assert content[: POSITIONS.nbytes] == POSITIONS.tobytes()


@pytest.mark.parametrize("shape", ["2,65,200", "1,1,65,200"])
def test_other_values_stay_in_one_piece(shape: str, tmp_path: Path) -> None:
    pack = compiled(added(shape=shape), tmp_path)
    assert len([piece for piece in pack.manifest.pieces if piece.span is not None]) == 1
