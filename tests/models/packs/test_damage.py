"""Damage of weights.bin is found on the first sweep, before there is an answer."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from loader.errors import ChecksumError, FileChangedError, LoaderError, ReadError
from loader.pool.pool import ReadPool
from loader.readers.fakes import MemoryReader
from loader.readers.files import BufferedReader
from loader.readers.interface import Reader
from models.packs.pack import Pack, open_pack
from pipeline.devices.base import Device
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.planning.make import make_plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.models.nets import answers, inputs_for

INPUTS = inputs_for({"image": (1, 3, 8, 8)})


@pytest.fixture
def pool() -> Iterator[ReadPool]:
    pool = ReadPool(2)
    yield pool
    pool.close()


def sweep(pack: Pack, reader: Reader, pool: ReadPool, architecture: str = "2s") -> np.ndarray:
    """Open an engine, run it once, close it; return the scores."""
    program = Program.as_compiled(pack)
    chosen = ARCHITECTURES[architecture]
    plan = make_plan(program, chosen, 3 * pack.manifest.largest_chunk_bytes)
    device: Device = CpuDevice()
    engine = Engine(program, plan, device, pool, reader)
    try:
        engine.open()
        outputs, _ = engine.run(INPUTS)
        return outputs["logits"]
    finally:
        engine.close()
        device.close()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sound_weights_give_the_answer(
    architecture: str, tiny_pack: Pack, tiny_onnx: Path, pool: ReadPool
) -> None:
    scores = sweep(tiny_pack, BufferedReader(tiny_pack.weights_path), pool, architecture)
    assert np.abs(scores - answers(tiny_onnx, INPUTS)["logits"]).max() <= 1e-5


def test_one_flipped_bit_anywhere_is_found(tiny_pack: Pack, pool: ReadPool) -> None:
    """In weights, in padding, in the resident span, in the first byte and in the last."""
    weights = tiny_pack.weights_path.read_bytes()
    last = 8 * len(weights) - 1
    bits = [0, 4095 * 8, last, *random.Random(11).sample(range(last), 12)]
    for bit in bits:
        damaged = bytearray(weights)
        damaged[bit // 8] ^= 1 << bit % 8
        architecture = "pre" if bit % 2 else "2s"
        with pytest.raises(ChecksumError) as caught:
            sweep(tiny_pack, MemoryReader(bytes(damaged)), pool, architecture)
        assert type(caught.value) is ChecksumError
        assert str(caught.value).startswith("memory: bytes [")
        assert str(caught.value).isprintable()
        first, end = (int(n) for n in str(caught.value).split("[")[1].split(")")[0].split(","))
        assert first <= bit // 8 < end


def test_file_cut_short_after_it_was_opened(pack_folder: Path, pool: ReadPool) -> None:
    pack = open_pack(pack_folder)
    reader = BufferedReader(pack.weights_path)
    os.truncate(pack.weights_path, 100_000)
    # Before a byte is read for a request; resident weights that are missing are a read cut short.
    with pytest.raises(FileChangedError, match="changed since it was opened"):
        sweep(pack, reader, pool, "2s")
    reader = BufferedReader(pack.weights_path)
    with pytest.raises(ReadError, match=": ends at ") as caught:
        sweep(pack, reader, pool, "pre")
    assert type(caught.value) is ReadError


def test_weights_of_another_pack_are_found(tiny_pack: Pack, pool: ReadPool) -> None:
    zeros = MemoryReader(bytes(tiny_pack.weights_path.stat().st_size))
    with pytest.raises(LoaderError, match="damaged"):
        sweep(tiny_pack, zeros, pool)
