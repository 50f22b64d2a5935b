"""Packs whose weights are stored otherwise answer as one that has what they expand to."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from loader.errors import LoaderError
from loader.pool.pool import ReadPool
from loader.readers.fakes import MemoryReader
from models.compiler import CompileOptions, compile_onnx
from models.packs.manifest import checksum, write_manifest
from models.packs.names import Store
from models.packs.pack import Pack, open_pack
from models.packs.records.spans import FileRecord, Span
from models.packs.storing import read_span
from pipeline.devices.base import Device
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.device_memory import Memory, Use
from pipeline.execution.opened import opened
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.trace import TraceEvent
from tests.examples import over
from tests.models.nets import CHUNK_BYTES
from tests.oracle.device import ReferenceDevice
from tests.pipeline.schedule.judge import violations
from tests.pipeline.writes import writes

Floats = NDArray[np.float32]
STORES: tuple[Store, ...] = ("fp16", "bf16", "int8", "lossless")
INPUTS = {"image": np.random.default_rng(4).standard_normal((1, 3, 8, 8)).astype(np.float32)}


@pytest.fixture(scope="module")
def packs(tiny_onnx: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pack]:
    """One pack for each way to store weights. Not to be changed."""
    repository = tmp_path_factory.mktemp("stored")
    options = CompileOptions(chunk_bytes=CHUNK_BYTES)
    return {
        store: open_pack(compile_onnx(tiny_onnx, repository / store, replace(options, store=store)))
        for store in STORES
    }


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    device = CpuDevice(1)
    yield device
    device.close()


def expanded(pack: Pack, folder: Path) -> Pack:
    """Return a plain pack with the weights that ``pack`` expands to."""
    shutil.copytree(pack.folder, folder)
    contents = [read_span(pack.weights_path, span) for span in pack.manifest.spans]
    (folder / "weights.bin").write_bytes(np.concatenate(contents).tobytes())
    (folder / "model.onnx").write_bytes(b"")
    files = {
        **pack.manifest.files,
        "weights.bin": FileRecord(n_bytes=sum(map(len, contents))),
        "model.onnx": FileRecord(n_bytes=0, checksum=checksum(b"")),
    }
    spans = tuple(
        replace(span, stored=None, checksum=checksum(content.data))
        for span, content in zip(pack.manifest.spans, contents, strict=True)
    )
    changed = replace(pack.manifest, files=files, spans=spans, store="fp32")
    write_manifest(changed, folder / "manifest.json")
    return open_pack(folder)


def plan_of(program: Program, architecture: str, choice: Choice) -> Plan:
    slots = ARCHITECTURES[architecture].slots or 1
    ring = slots * max(program.largest_chunk_bytes, choice.chunk_bytes or 0)
    return make_plan(program, ARCHITECTURES[architecture], choice=replace(choice, ring_bytes=ring))


def answer(pack: Pack, plan: Plan, device: Device) -> Floats:
    """Return what the second sweep answers, whose head was perhaps read in the first."""
    events: list[TraceEvent] = []
    with opened(Program.as_compiled(pack), plan, device) as engine:
        engine.run(INPUTS)
        outputs, _ = engine.run(INPUTS, record=events.append)
    if plan.reads:
        assert violations(events, writes(plan), len(plan.steps)) == []
    return outputs["logits"]


@pytest.mark.parametrize("store", STORES)
def test_every_architecture_gives_the_bits_of_the_expanded_weights(
    store: Store, packs: dict[str, Pack], device: Device, tmp_path: Path
) -> None:
    pack = packs[store]
    plain = expanded(pack, tmp_path / "plain" / "1")
    expected = answer(plain, make_plan(Program.as_compiled(plain), ARCHITECTURES["pre"]), device)
    streamed = [n for n, span in enumerate(Program.as_compiled(pack).spans) if not span.resident]
    choices = (
        Choice(chunk_bytes=0),
        Choice(chunk_bytes=1 << 20, ahead="tail", depth=1),
        Choice(chunk_bytes=100_000, ahead="idle", resident=tuple(streamed[::2])),
    )
    # Each architecture with each choice, but not with each for every way of storing.
    for number, architecture in enumerate(ARCHITECTURES, STORES.index(store)):
        choice = choices[number % len(choices)]
        plan = plan_of(Program.as_compiled(pack), architecture, choice)
        found = answer(pack, plan, device)
        assert np.array_equal(found, expected), (architecture, choice)


def test_without_a_library_the_bits_are_the_same(
    packs: dict[str, Pack], device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(Program.as_compiled(packs["int8"]), ARCHITECTURES["2s"])
    expected = answer(packs["int8"], plan, device)
    monkeypatch.setattr("pipeline.devices.expansion.find_library", lambda: None)
    assert np.array_equal(answer(packs["int8"], plan, device), expected)


def test_lossless_weights_are_those_of_the_source(
    packs: dict[str, Pack], tiny_pack: Pack, device: Device
) -> None:
    program = Program.as_compiled(tiny_pack)
    for span, plain in zip(packs["lossless"].manifest.spans, program.spans, strict=True):
        found = read_span(packs["lossless"].weights_path, span)
        assert np.array_equal(found, read_span(tiny_pack.weights_path, plain))
    plan = make_plan(Program.as_compiled(packs["lossless"]), ARCHITECTURES["auto"])
    pre = make_plan(program, ARCHITECTURES["pre"])
    assert np.array_equal(answer(packs["lossless"], plan, device), answer(tiny_pack, pre, device))


@pytest.mark.parametrize("store", STORES)
def test_the_reference_device_expands_too(store: Store, packs: dict[str, Pack]) -> None:
    pack = packs[store]
    plan = make_plan(Program.as_compiled(pack), ARCHITECTURES["2s"])
    reference, cpu = ReferenceDevice(), CpuDevice(1)
    try:
        one, other = answer(pack, plan, reference), answer(pack, plan, cpu)
    finally:
        reference.close()
        cpu.close()
    assert np.abs(one - other).max() <= 1e-4


@over("store", STORES)
def test_a_sweep_reads_what_lies_in_the_file(store: Store, packs: dict[str, Pack]) -> None:
    program = Program.as_compiled(packs[store])
    plan = make_plan(program, ARCHITECTURES["2s"])
    streamed = [span for span in program.spans if not span.resident]
    assert plan.read_bytes == sum(span.file_length for span in streamed)
    assert plan.read_bytes < sum(span.length for span in streamed)
    assert plan.staging_bytes <= plan.ring_bytes


class Counting(CpuDevice):
    """Adds up what is asked for."""

    asked_bytes = 0

    def allocate(self, use: Use, n_bytes: int, slots: int = 1) -> Memory:
        self.asked_bytes += n_bytes
        return super().allocate(use, n_bytes, slots)


@over("architecture", ["pre", "2s"])
@over("store", STORES)
def test_loading_takes_no_memory_beside_the_plan(
    store: Store, architecture: str, packs: dict[str, Pack]
) -> None:
    plan = make_plan(Program.as_compiled(packs[store]), ARCHITECTURES[architecture])
    device = Counting(1)
    try:
        with opened(Program.as_compiled(packs[store]), plan, device):
            assert device.asked_bytes <= plan.weight_bytes + plan.arena_bytes + plan.scratch_bytes
    finally:
        device.close()


def test_a_flipped_bit_is_found_before_it_is_expanded(
    packs: dict[str, Pack], device: Device
) -> None:
    pack = packs["int8"]
    weights = bytearray(pack.weights_path.read_bytes())
    last: Span = Program.as_compiled(pack).spans[-1]
    weights[last.file_offset + 5] ^= 4
    plan = make_plan(Program.as_compiled(pack), ARCHITECTURES["2s"])
    with (
        closing(ReadPool()) as pool,
        opened(
            Program.as_compiled(pack), plan, device, pool, MemoryReader(bytes(weights))
        ) as engine,
        pytest.raises(LoaderError, match=r"checksum"),
    ):
        engine.run(INPUTS)
