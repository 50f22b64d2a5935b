"""Networks of Darknet, streamed: ``2s`` equals ``pre`` bit for bit, and an independent interpreter."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loader.pool.pool import ReadPool
from loader.readers.fakes import MemoryReader
from loader.readers.files import open_reader
from loader.readers.interface import Reader
from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import Pack, open_pack
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.planning.make import make_plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import thinned
from tests.models.darknet.cfgs import (
    SMALL,
    ZOO,
    at_resolution,
    cfg_text,
    shrunken,
    zoo_text,
)
from tests.models.darknet.imports import (
    TOLERANCE,
    Draw,
    Imported,
    answer_of_onnxruntime,
    calibrated_weights,
    import_text,
    seeded_weights,
)
from tests.models.darknet.oracle import parse
from tests.models.darknet.random_cfg import RandomCfg

MIB = 1 << 20

#: With a sixteenth of their filters these would have hardly a chunk.
NARROW = ("efficientnet-b0-darknet", "darknet-tiny", "yolov4-tiny")

Open = Callable[[Path], Reader]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where hundreds of megabytes may lie while the test runs, and no longer."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def in_memory(path: Path) -> Reader:
    return MemoryReader(path.read_bytes())


def answer(
    pack: Pack, image: NDArray[np.float32], architecture: str, ring: int | None, opened: Open
) -> list[NDArray[Any]]:
    """Return the outputs in the order of the manifest, of a second sweep in the same memory."""
    program = Program.as_compiled(pack)
    plan = make_plan(program, ARCHITECTURES[architecture], ring)
    pool = ReadPool()
    engine = Engine(program, plan, CpuDevice(), pool, opened(pack.weights_path))
    try:
        engine.open()
        name = pack.manifest.inputs[0].name
        engine.run({name: 1 - image})
        outputs, _ = engine.run({name: image})
        return [outputs[port.name] for port in pack.manifest.outputs]
    finally:
        engine.close()
        pool.close()


def streamed_error(imported: Imported, pack: Pack, ring: int, opened: Open = in_memory) -> float:
    """Check that ``2s`` with ``ring`` equals ``pre``; return the difference from the oracle."""
    expected = answer(pack, imported.image, "pre", None, opened)
    streamed = answer(pack, imported.image, "2s", ring, opened)
    assert all(map(np.array_equal, expected, streamed))
    return imported.error(streamed)


def check(text: str, folder: Path, draw: Draw = seeded_weights, chunk: int = 4 << 10) -> Pack:
    imported = import_text(text, folder, draw)
    options = CompileOptions(chunk_bytes=chunk)
    pack = open_pack(compile_onnx(imported.onnx, folder / "pack", options))
    assert streamed_error(imported, pack, pack.manifest.largest_chunk_bytes) < TOLERANCE
    return pack


@pytest.mark.parametrize("name", thinned(SMALL, 4))
def test_small_networks(name: str, tmp_path: Path) -> None:
    manifest = check(SMALL[name].read_text(), tmp_path, calibrated_weights, 8 << 10).manifest
    assert manifest.largest_chunk_bytes < manifest.weight_bytes / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_networks_of_the_zoo_made_smaller(name: str, tmp_path: Path) -> None:
    divisor = 4 if name in NARROW else 16
    text = shrunken(zoo_text(name), divisor, 2 * ZOO[name].multiple)
    manifest = check(text, tmp_path, calibrated_weights, 16 << 10).manifest
    assert manifest.largest_chunk_bytes < manifest.weight_bytes / 2


@pytest.mark.parametrize("seed", thinned(range(1000, 1020), 5))
def test_random_networks(seed: int, tmp_path: Path) -> None:
    check(RandomCfg(seed).text, tmp_path)


@pytest.mark.slow
@pytest.mark.disk
@pytest.mark.parametrize("name", ZOO)
def test_whole_networks_in_a_small_ring(name: str, folder: Path) -> None:
    text = cfg_text(at_resolution(parse(zoo_text(name)), 2 * ZOO[name].multiple))
    imported = import_text(text, folder, calibrated_weights)
    plain = imported.error(answer_of_onnxruntime(imported))
    pack = open_pack(compile_onnx(imported.onnx, folder / "pack"))
    assert pack.manifest.largest_chunk_bytes <= 4 * MIB
    streamed = streamed_error(imported, pack, 4 * MIB, open_reader)
    print(f"{name}: largest relative error {plain:.1e}, streamed {streamed:.1e}")
    assert max(plain, streamed) < TOLERANCE
