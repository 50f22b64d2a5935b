"""Rows of tables: the bits of the table in memory, few reads, and errors that name what is wrong."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from loader.errors import ChecksumError, LoaderError, ReadError
from loader.pool.pool import ReadPool
from loader.readers.fakes import FaultyReader, MemoryReader, ReadFault
from models.compiler import CompileOptions, compile_onnx
from models.packs.names import Store
from models.packs.pack import Pack, open_pack
from models.packs.records.pieces import PAGE_BYTES
from pipeline.devices.cpu import CpuDevice
from pipeline.execution import deadlines
from pipeline.execution.baton import FREE, Baton, ComputeClaim
from pipeline.execution.engine import Engine
from pipeline.execution.errors import CancelledError, DeadlineError, DrainError, InputError
from pipeline.execution.lane import Lane
from pipeline.execution.opened import open_pipeline, opened
from pipeline.execution.table_reads import waves
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan, partitioned
from pipeline.program.kernels import LOOKUP_DEPTH, TableLookup
from pipeline.program.partitions import Cuts
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import examples, over
from tests.models.compiler.cutting.test_tables import ROWS, WIDTH, drawn, network

pytestmark = pytest.mark.usefixtures("reads_by")

Answers = dict[str, NDArray[Any]]
#: A row of a table of bytes, then of fp16, then of floats, the last by indices that a node computes.
TEXT = """embed (int64[1,40] ids, int32[40] types) => (float[1,40,32] y, float[40,1500] z) {
    x = Gather(table, ids)
    y = MatMul(x, w)
    places = Add(types, one)
    rows = Gather(bytes, places)
    z = DequantizeLinear(rows, scale)
}"""
TABLE = drawn(ROWS, WIDTH)
BYTES = np.random.default_rng(2).integers(0, 256, (900, 1500), np.uint8)
TOKENS = 40


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = network(
        TEXT,
        table=TABLE,
        w=drawn(WIDTH, 32),
        bytes=BYTES,
        one=np.array(1, np.int32),
        scale=np.array(0.5, np.float32),
    )
    path = tmp_path_factory.mktemp("source") / "embed.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def pack(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return open_pack(compile_onnx(source, tmp_path_factory.mktemp("packs") / "embed"))


@pytest.fixture(scope="module")
def device() -> Iterator[CpuDevice]:
    device = CpuDevice(1)
    yield device
    device.close()


@pytest.fixture(scope="module")
def program(pack: Pack, device: CpuDevice) -> Program:
    program = prepare(pack, device)
    assert len(program.tables) == 2
    return program


@pytest.fixture(scope="module")
def preloaded(program: Program, device: CpuDevice) -> list[Answers]:
    """Answers to a few requests, of all weights in memory."""
    with opened(program, planned(program, "pre"), device) as engine:
        return [engine.run(inputs(seed))[0] for seed in range(3)]


def inputs(seed: int = 0) -> dict[str, NDArray[Any]]:
    generator = np.random.default_rng(seed)
    return {
        "ids": generator.integers(-ROWS, ROWS, (1, TOKENS)),
        "types": generator.integers(-901, 899, TOKENS, np.int32),
    }


def planned(program: Program, name: str = "2s", **choice: Any) -> Plan:
    return make_plan(program, ARCHITECTURES[name], choice=Choice(**choice))


def content(pack: Pack) -> bytes:
    return pack.weights_path.read_bytes()


# Which pages come at once.


@given(
    rows=st.lists(st.integers(0, 60)).map(sorted),
    row_bytes=st.integers(1, 3 * PAGE_BYTES),
    spare=st.integers(0, 4),
)
@examples(30, 300)
def test_waves_have_each_row_once(rows: list[int], row_bytes: int, spare: int) -> None:
    table = np.random.default_rng(0).integers(0, 256, 62 * 3 * PAGE_BYTES, np.uint8)
    max_pages = (row_bytes + PAGE_BYTES - 2) // PAGE_BYTES + 1 + spare
    positions, all_pages = list[int](), list[int]()
    for wave in waves(rows, row_bytes, max_pages):
        assert len(wave.pages) <= max_pages
        assert wave.pages == sorted(set(wave.pages))
        buffer = np.concatenate([table[page * PAGE_BYTES :][:PAGE_BYTES] for page in wave.pages])
        for position, start in wave.rows:
            expected = table[rows[position] * row_bytes :][:row_bytes]
            assert np.array_equal(buffer[start : start + row_bytes], expected)
            positions.append(position)
        all_pages += wave.pages
    assert positions == list(range(len(rows)))
    needed = {
        page
        for row in rows
        for page in range(
            row * row_bytes // PAGE_BYTES, ((row + 1) * row_bytes - 1) // PAGE_BYTES + 1
        )
    }
    assert set(all_pages) == needed
    if len(needed) <= max_pages:
        assert len(all_pages) == len(needed)


# Answers.


@over("name", sorted(ARCHITECTURES))
def test_rows_have_the_bits_of_the_table_in_memory(
    name: str, program: Program, device: CpuDevice, preloaded: list[Answers]
) -> None:
    plan = planned(program, name, depth=1)
    assert plan.reads_rows is (name != "pre")
    with opened(program, plan, device) as engine:
        assert engine.reads_nothing is (name == "pre")
        for seed, expected in enumerate(preloaded):
            request = inputs(seed)
            answer, took = engine.run(request)
            for output, array in expected.items():
                assert np.array_equal(answer[output], array)
            pages = len(set((request["ids"][0] % ROWS * 4 * WIDTH // PAGE_BYTES).tolist()))
            more = took.read_bytes - plan.read_bytes
            assert (more > pages * PAGE_BYTES) is (name != "pre")


def test_rows_are_those_that_indices_name(preloaded: list[Answers]) -> None:
    for seed, answer in enumerate(preloaded):
        request = inputs(seed)
        scaled = np.float32(0.5) * BYTES[request["types"] + 1].astype(np.float32)
        assert np.array_equal(answer["z"], scaled)
        assert np.allclose(answer["y"][0], TABLE[request["ids"][0]] @ drawn(WIDTH, 32), atol=1e-3)


def test_a_pass_reads_no_page_twice(program: Program, pack: Pack, device: CpuDevice) -> None:
    read_offsets: list[tuple[int, int]] = []
    reader = MemoryReader(
        content(pack), lambda offset, length: read_offsets.append((offset, length))
    )
    with opened(program, planned(program), device, reader=reader) as engine:
        read_offsets.clear()
        same = {"ids": np.full((1, TOKENS), 7), "types": np.full(TOKENS, 3, np.int32)}
        engine.run(same)
    starts = sorted(program.spans[span].file_offset for span in program.tables)
    lookups = [
        (offset, n)
        for offset, n in read_offsets
        if any(0 <= offset - start < 1 << 20 for start in starts)
    ]
    assert sum(n for _, n in lookups) <= 3 * PAGE_BYTES
    assert all(offset % PAGE_BYTES == n % PAGE_BYTES == 0 for offset, n in lookups)


def test_a_plan_counts_the_buffer_and_no_table(program: Program) -> None:
    plan = planned(program)
    table_bytes = min(program.spans[span].length for span in program.tables)
    assert plan.total_bytes < table_bytes < planned(program, "pre").total_bytes
    lookups = [p for p in program.pieces if isinstance(p.kernel, TableLookup)]
    for piece in lookups:
        assert isinstance(piece.kernel, TableLookup)
        assert piece.kernel.buffer_bytes <= 256 << 10
        assert piece.scratch_bytes > piece.kernel.buffer_bytes
    assert plan.scratch_bytes >= max(piece.scratch_bytes for piece in lookups)


def test_a_choice_may_keep_a_table(program: Program, device: CpuDevice) -> None:
    (first, second) = sorted(program.tables)
    plan = planned(program, "auto", resident=(first,))
    assert first in plan.resident
    assert second not in plan.resident
    with (
        opened(program, plan, device) as engine,
        opened(program, planned(program), device) as other,
    ):
        one, another = engine.run(inputs())[0], other.run(inputs())[0]
        assert all(np.array_equal(one[name], another[name]) for name in one)


@over("store", ["fp16", "int8", "lossless"])
def test_stored_weights_leave_rows_as_they_are(
    store: Store, source: Path, device: CpuDevice, tmp_path: Path
) -> None:
    options = CompileOptions(store=store)
    pack = open_pack(compile_onnx(source, tmp_path / f"embed-{store}", options))
    program = prepare(pack, device)
    for name in ("2s", "pre"):
        plan = planned(program, name)
        assert plan.staging_bytes < 1 << 20
        with opened(program, plan, device) as engine:
            request = inputs()
            expected = np.float32(0.5) * BYTES[request["types"] + 1].astype(np.float32)
            answer = engine.run(request)[0]
            assert np.array_equal(answer["z"], expected)
            # Also where a table lies in memory, beside weights that are expanded.
            exact = TABLE[request["ids"]] @ drawn(WIDTH, 32)
            assert np.abs(answer["y"] - exact).max() < 0.02 * np.abs(exact).max()


def test_requests_of_a_batch_have_separate_rows(program: Program, device: CpuDevice) -> None:
    plan = planned(program, lanes=2)
    bad = {**inputs(1), "ids": np.full((1, TOKENS), ROWS)}
    with opened(program, plan, device) as engine:
        one, other = engine.run_lanes([Lane(inputs(1)), Lane(inputs(2))])
        separate = [engine.run(inputs(seed))[0] for seed in (1, 2)]
        for answer, expected in zip((one, other), separate, strict=True):
            assert not isinstance(answer, Exception)
            assert all(np.array_equal(answer[0][name], expected[name]) for name in expected)
        wrong, right = engine.run_lanes([Lane(bad), Lane(inputs(2))])
        assert isinstance(wrong, InputError)
        assert not isinstance(right, Exception)
        assert np.array_equal(right[0]["y"], separate[1]["y"])


def test_partitions_read_rows(program: Program, device: CpuDevice) -> None:
    cuts = Cuts(program).places[:1]
    segments = Cuts(program).parts(cuts)
    plans = [planned(segment) for segment in segments]
    edges = [Cuts(program).edge_bytes(cut) for cut in cuts]
    plan = partitioned(plans, cuts, edges)
    with closing(ReadPool()) as pool:
        pipeline = open_pipeline(program, plan, [device, device], pool)
        try:
            answer = pipeline.run(inputs())[0]
        finally:
            pipeline.close()
    with opened(program, planned(program), device) as engine:
        expected = engine.run(inputs())[0]
    assert all(np.array_equal(answer[name], expected[name]) for name in expected)


# Bad input.


@over("index", [ROWS, -ROWS - 1, 1 << 40, -(1 << 62)])
@over("name", ["2s", "pre"])
def test_an_index_that_is_no_row_is_refused_before_anything_is_read(
    index: int, name: str, program: Program, pack: Pack, device: CpuDevice
) -> None:
    read_offsets: list[int] = []
    reader = MemoryReader(content(pack), lambda offset, length: read_offsets.append(offset))
    request = inputs()
    request["ids"][0, 5] = index
    with opened(program, planned(program, name), device, reader=reader) as engine:
        read_offsets.clear()
        message = rf"input 'ids': {index} at \[0, 5\] is no row of layer .*{ROWS} \(from -{ROWS} to"
        with pytest.raises(InputError, match=message):
            engine.run(request)
        assert not read_offsets
        engine.run(inputs())


def test_an_index_that_is_computed_is_refused_with_its_input(
    program: Program, device: CpuDevice
) -> None:
    request = inputs()
    request["types"][3] = 899
    with opened(program, planned(program), device) as engine:
        with pytest.raises(InputError, match=r"input 'types': 900 at \[3\] is no row of layer"):
            engine.run(request)
        engine.run(inputs())


# Bad disks.


def _file_offset(program: Program, row: int) -> int:
    """Return where row ``row`` of the table of floats is in the file."""
    lookups = [p.kernel for p in program.pieces if isinstance(p.kernel, TableLookup)]
    (lookup,) = (item for item in lookups if item.rows == ROWS)
    return program.spans[lookup.span].file_offset + row * lookup.row_bytes


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("io error", ReadError, "Input/output error"),
        ("short", ReadError, "short of"),
        ("wrong bytes", ChecksumError, "are damaged"),
    ],
)
def test_a_disk_that_fails_ends_the_pass_and_no_more(
    kind: Any,
    error: type[LoaderError],
    message: str,
    program: Program,
    pack: Pack,
    device: CpuDevice,
) -> None:
    start = _file_offset(program, 700)
    sound = MemoryReader(content(pack))
    reader = FaultyReader(sound, [ReadFault(kind, start, start + 1)])
    request = inputs()
    request["ids"][:] %= 600
    with opened(program, planned(program), device, reader=reader) as engine:
        engine.run(request)  # of other rows
        request["ids"][0, 9] = 700
        with pytest.raises(error, match=message):
            engine.run(request)
        assert sound.in_progress == 0
        answer = engine.run(request)[0]  # the disk is sound again
        assert np.allclose(answer["y"][0, 9], TABLE[700] @ drawn(WIDTH, 32), atol=1e-3)


def test_a_damaged_page_is_refused_in_every_pass(
    program: Program, pack: Pack, device: CpuDevice
) -> None:
    damaged = bytearray(content(pack))
    damaged[_file_offset(program, 700)] ^= 1
    request = inputs()
    request["ids"][:] %= 600
    with opened(program, planned(program), device, reader=MemoryReader(bytes(damaged))) as engine:
        for _ in range(2):
            engine.run(request)
            with pytest.raises(ChecksumError):
                engine.run({**request, "ids": np.full((1, TOKENS), 700)})


class Gate:
    """Holds reads of tables back until it is opened."""

    def __init__(self, program: Program) -> None:
        self.opened, self.reached = threading.Event(), threading.Semaphore(0)
        self.closed = False
        self._tables = [program.spans[span] for span in program.tables]

    def __call__(self, offset: int, length: int) -> None:
        in_table = any(0 <= offset - span.file_offset < span.length for span in self._tables)
        if self.closed and in_table:
            self.reached.release()
            assert self.opened.wait(20)


def _waiting(
    engine: Engine, gate: Gate, claim: ComputeClaim = FREE, **options: Any
) -> tuple[threading.Thread, list[Exception]]:
    """Start a request whose rows do not come; return when they are being read."""
    errors: list[Exception] = []

    def run() -> None:
        (answer,) = engine.run_lanes([Lane(inputs(), **options)], claim=claim)
        if isinstance(answer, Exception):
            errors.append(answer)

    gate.closed = True
    thread = threading.Thread(target=run)
    thread.start()
    assert gate.reached.acquire(timeout=20)
    return thread, errors


def test_a_cancelled_request_waits_for_reads_in_flight(
    program: Program, pack: Pack, device: CpuDevice
) -> None:
    gate, cancelled = Gate(program), threading.Event()
    reader = MemoryReader(content(pack), gate)
    with opened(program, planned(program), device, reader=reader) as engine:
        thread, errors = _waiting(engine, gate, cancelled=cancelled.is_set)
        cancelled.set()
        gate.opened.set()
        thread.join(20)
        assert [type(error) for error in errors] == [CancelledError]
        assert reader.in_progress == 0
        engine.run(inputs())


def test_a_late_request_ends_with_its_deadline(
    program: Program, pack: Pack, device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(program)
    reader = MemoryReader(content(pack), gate)
    with opened(program, planned(program), device, reader=reader) as engine:
        now = time.monotonic()
        clock = SimpleNamespace(monotonic=lambda: now)
        monkeypatch.setattr(deadlines, "time", clock)
        thread, errors = _waiting(engine, gate, deadline=now + 100)
        clock.monotonic = lambda: now + 100
        gate.opened.set()
        thread.join(20)
        assert [type(error) for error in errors] == [DeadlineError]
        monkeypatch.undo()
        engine.run(inputs())


def test_reads_that_never_end_take_the_model_out_of_service(
    program: Program, pack: Pack, device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(program)
    reader = MemoryReader(content(pack), gate)
    pool = ReadPool()
    with opened(program, planned(program), device, pool, reader) as engine:
        monkeypatch.setattr(deadlines, "DRAIN_SECONDS", 0.02)
        thread, errors = _waiting(engine, gate)
        thread.join(20)
        assert [type(error) for error in errors] == [DrainError]
        assert "have not come" in engine.broken
        with pytest.raises(DrainError):
            engine.run(inputs())
        gate.opened.set()
    pool.close()


def test_another_model_computes_while_rows_come(
    program: Program, pack: Pack, device: CpuDevice
) -> None:
    gate, compute_lock = Gate(program), Baton()
    claim = compute_lock.claim()
    reader = MemoryReader(content(pack), gate)
    with opened(program, planned(program), device, reader=reader) as engine:
        thread, errors = _waiting(engine, gate, claim=claim)
        other = compute_lock.claim()
        other.hold(None, lambda: False)
        assert compute_lock.has(other)
        gate.opened.set()
        other.give()
        thread.join(20)
        assert not errors


def test_reads_in_flight_are_limited(program: Program, pack: Pack, device: CpuDevice) -> None:
    counts = [0]
    reader = MemoryReader(content(pack))
    reader.hook = lambda offset, length: counts.append(reader.in_progress)
    with (
        closing(ReadPool(8)) as pool,
        opened(program, replace(planned(program)), device, pool, reader) as engine,
    ):
        engine.run(inputs())
    assert max(counts) <= LOOKUP_DEPTH + 2
