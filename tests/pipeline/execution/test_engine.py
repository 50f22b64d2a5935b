"""The engine on a real pack: every architecture and ring gives the same bits, faults lose nothing."""

import errno
import os
import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from loader.buffers import Buffer
from loader.errors import ChecksumError, ReadError
from loader.pool.pool import ReadPool
from loader.readers.fakes import MemoryReader
from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import Pack, open_pack
from models.zoo.builder import SkeletonBuilder
from pipeline.devices.base import Device, Kernel, KernelError, Launch
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.device_memory import Memory, Use
from pipeline.execution.engine import Engine
from pipeline.execution.errors import CancelledError, DeadlineError, EngineClosedError, InputError
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.program.choice import streamed_bytes
from pipeline.program.program import PreparedPiece, Program
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.trace import TraceEvent
from tests.examples import over
from tests.models.nets import filled
from tests.pipeline.schedule.judge import violations
from tests.pipeline.writes import streamed, writes

pytestmark = pytest.mark.usefixtures("reads_by")
CHUNK = 16 << 10
Tensor = NDArray[np.float32]


def small_network() -> onnx.ModelProto:
    """A stem, two residual blocks and a classifier: 0.6 MB, layers far above the chunk size."""
    b = SkeletonBuilder("small", 16)
    x = b.relu(b.norm(b.conv(b.image, 32, 3)))
    for width, stride in ((32, 1), (64, 2)):
        y = b.relu(b.norm(b.conv(x, width, 3, stride)))
        y = b.norm(b.conv(y, width, 3))
        shortcut = x if stride == 1 else b.norm(b.conv(x, width, 1, stride))
        x = b.relu(b.add(y, shortcut))
    x = b.linear(b.relu(b.linear(b.flatten(b.max_pool(x, 2, 2)), 100)), 10)
    return filled(b.model(x), seed=3)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "small.onnx"
    onnx.save(small_network(), path)
    return path


@pytest.fixture(scope="module")
def pack(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    folder = tmp_path_factory.mktemp("repository") / "small"
    return open_pack(compile_onnx(source, folder, CompileOptions(chunk_bytes=CHUNK)))


@pytest.fixture(scope="module")
def expected(source: Path, image: Tensor) -> Tensor:
    session = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    result: Tensor = session.run(None, {"image": image})[0]
    return result


@pytest.fixture(scope="module")
def image() -> Tensor:
    return np.random.default_rng(5).standard_normal((1, 3, 16, 16), np.float32)


OpenEngine = Callable[..., tuple[Engine, MemoryReader]]


@pytest.fixture
def open_engine(pack: Pack) -> Iterator[OpenEngine]:
    """Return a function that opens an engine over an in-memory weights.bin; all are closed."""
    program = Program.as_compiled(pack)
    pool, device = ReadPool(), CpuDevice()
    opened: list[tuple[Engine, MemoryReader]] = []

    def function(
        architecture: str = "2s",
        ring: int | None = None,
        choice: Choice | None = None,
        **options: Any,
    ) -> tuple[Engine, MemoryReader]:
        reader = MemoryReader(pack.weights_path.read_bytes())
        plan = make_plan(program, ARCHITECTURES[architecture], ring, choice)
        engine = Engine(program, plan, device, pool, reader, **options)
        opened.append((engine, reader))
        engine.open()
        return engine, reader

    yield function
    for engine, _ in opened:
        engine.close()
    pool.close()
    device.close()
    assert all(reader.closed for _, reader in opened)


def rings(pack: Pack) -> list[int]:
    program = Program.as_compiled(pack)
    layer = program.largest_layer_bytes
    return [program.largest_chunk_bytes, layer // 2, layer, 3 * layer]


class FailingDevice(Device):
    """Loads everything and computes nothing."""

    name = "failing"

    def load(self, graph: bytes) -> Kernel:
        return FailingKernel()


class FailingKernel(Kernel):
    def bind(
        self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Memory | None = None
    ) -> Launch:
        def launch() -> None:
            raise KernelError("no such instruction")

        return launch


def test_a_kernel_that_fails_is_named(pack: Pack, image: Tensor) -> None:
    program = Program.as_compiled(pack)
    pool, reader = ReadPool(), MemoryReader(pack.weights_path.read_bytes())
    plan = make_plan(program, ARCHITECTURES["2s"])
    engine = Engine(program, plan, FailingDevice(), pool, reader)
    engine.open()
    first = program.layers[0]
    with pytest.raises(KernelError) as caught:
        engine.run({"image": image})
    assert str(caught.value) == f"layer {first.name!r} ({first.operator}): no such instruction"
    engine.close()
    pool.close()


class FullDevice(CpuDevice):
    """Has memory for all but one of the uses."""

    def __init__(self, full: Use) -> None:
        super().__init__(1)
        self._full = full

    def allocate(self, use: Use, n_bytes: int, slots: int = 1) -> Memory:
        if use == self._full:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return super().allocate(use, n_bytes, slots)


@over("full", ["staging", "shared", "own", "scratch"])
def test_an_engine_without_memory_leaves_no_client_behind(pack: Pack, full: Use) -> None:
    program = Program.as_compiled(pack)
    pool, reader = ReadPool(), MemoryReader(pack.weights_path.read_bytes())
    plan = make_plan(program, ARCHITECTURES["2s"])
    before = pool.statistics().clients
    with pytest.raises(OSError, match="allocate"):
        Engine(program, plan, FullDevice(full), pool, reader)
    assert pool.statistics().clients == before
    pool.close()


def test_the_pack_is_a_hard_case(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    assert program.largest_chunk_bytes < program.largest_layer_bytes // 4
    assert any(layer.end_piece - layer.first_piece > 2 for layer in program.layers)
    assert any(value.parent is not None for value in program.values)
    assert any(span.resident for span in program.spans)


CHOICES = {
    "least": Choice(),
    "chunks": Choice(chunk_bytes=4 * CHUNK),
    "ring": Choice(ring_bytes=100 << 10, read_bytes=8 << 10, depth=3),
    "layers": Choice(chunk_bytes=1 << 30),
    "ahead": Choice(ring_bytes=100 << 10, ahead="tail"),
    "mixed": Choice(ahead="tail", ring_bytes=100 << 10, resident=tuple(range(0, 1000, 3))),
}


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        pytest.param(architecture, name, marks=pytest.mark.slow if (one + other) % 2 else ())
        for one, architecture in enumerate(sorted(ARCHITECTURES))
        for other, name in enumerate(sorted(CHOICES))
    ],
)
def test_every_architecture_and_choice_gives_the_same_bits(
    pack: Pack,
    open_engine: OpenEngine,
    image: Tensor,
    expected: Tensor,
    architecture: str,
    name: str,
) -> None:
    reference, _ = open_engine("pre")
    engine, reader = open_engine(architecture, choice=CHOICES[name])
    outputs: dict[str, NDArray[Any]] = {}
    for _ in range(3):
        trace: list[TraceEvent] = []
        outputs, _ = engine.run({"image": image}, record=trace.append)
        assert np.array_equal(outputs["logits"], reference.run({"image": image})[0]["logits"])
        assert violations(trace, writes(engine.plan), len(engine.plan.steps)) == []
    assert np.allclose(outputs["logits"], expected, atol=1e-5)
    engine.settle()
    assert reader.in_progress == 0


@pytest.mark.parametrize("chunk", [None, 2 * CHUNK, 1 << 30])
@pytest.mark.parametrize("name", sorted(n for n, item in ARCHITECTURES.items() if item.equation))
def test_memory_is_that_of_the_equations(
    pack: Pack, open_engine: OpenEngine, image: Tensor, name: str, chunk: int | None
) -> None:
    """Seed 003: Eq. 2, 4, 6, 8, 9 with chunks in place of layers, as it was allocated.

    Beside them are the biases of layers that are cut, which all their chunks need.
    """
    program = Program.as_compiled(pack)
    shared = sum(span.length for span in program.spans if span.resident)
    engine, _ = open_engine(name, choice=Choice(chunk_bytes=chunk))
    engine.run({"image": image})
    memory, plan = engine.statistics().memory, engine.plan
    held = memory["staging"] + memory["ring"] + memory["resident"]
    largest = max(
        streamed_bytes(program, step)
        for step in plan.steps
        if isinstance(step, PreparedPiece)
        if step.span is not None and not program.spans[step.span].resident
    )
    if name == "pre":
        assert held == sum(span.length for span in program.spans)
    else:
        factor = {"seq": 2, "sync": 4, "async": 2, "2s": 1}[name]
        assert held == factor * largest + shared
        assert plan.equation_bytes == factor * largest
        # On Arm a whole product has other bits than its chunks, which are not joined then.
        if chunk == 1 << 30 and platform.machine() != "aarch64":
            assert abs(largest - program.largest_layer_bytes) < 4096  # without its bias


def test_what_is_allocated_is_what_was_planned(open_engine: OpenEngine, image: Tensor) -> None:
    engine, _ = open_engine("2s", 64 << 10)
    engine.run({"image": image})
    memory, planned = engine.statistics().memory, engine.plan.memory
    for kind in ("staging", "ring", "resident", "arena", "scratch", "io"):
        assert memory[kind] == planned[kind]
    # Here every session has threads of its own, which the plan does not count; in a process of our
    # own the bound holds (tests/deploy/test_service.py).
    assert memory["sessions"] > 0


def test_statistics_count_sweeps_and_bytes(open_engine: OpenEngine, image: Tensor) -> None:
    engine, _ = open_engine()
    sweeps = [engine.run({"image": image})[1] for _ in range(3)]
    assert engine.statistics().sweeps == 3
    assert engine.statistics().read_bytes == 3 * engine.plan.read_bytes == 3 * sweeps[0].read_bytes


def test_the_first_sweep_verifies_and_later_ones_on_request(
    open_engine: OpenEngine, image: Tensor
) -> None:
    engine, _ = open_engine()
    assert [engine.run({"image": image})[1].verified for _ in range(3)] == [True, False, False]
    engine, _ = open_engine(verify=True)
    assert [engine.run({"image": image})[1].verified for _ in range(2)] == [True, True]


def test_a_flipped_bit_in_any_span_is_found_before_an_answer(
    pack: Pack, open_engine: OpenEngine, image: Tensor
) -> None:
    engine, reader = open_engine()
    good = reader.content
    for number in streamed(engine.plan):
        span = Program.as_compiled(pack).spans[number]
        damaged = bytearray(good)
        damaged[span.offset + span.length // 2] ^= 1
        reader.content = bytes(damaged)
        with pytest.raises(ChecksumError, match=str(span.offset)):
            engine.run({"image": image})
    reader.content = good
    engine.run({"image": image})
    assert engine.statistics().failures == len(streamed(engine.plan))


def test_a_flipped_bit_in_a_resident_span_is_found_at_load(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    content = bytearray(pack.weights_path.read_bytes())
    content[program.spans[0].offset + 1] ^= 1
    pool = ReadPool()
    plan = make_plan(program, ARCHITECTURES["2s"])
    engine = Engine(program, plan, CpuDevice(), pool, MemoryReader(bytes(content)))
    with pytest.raises(ChecksumError):
        engine.open()
    engine.close()
    pool.close()


def test_a_failed_read_costs_one_request(
    pack: Pack, open_engine: OpenEngine, image: Tensor, expected: Tensor
) -> None:
    engine, reader = open_engine(ring=Program.as_compiled(pack).largest_chunk_bytes)
    for turn in range(len(engine.plan.reads)):
        seen = 0

        def fail(offset: int, length: int, turn: int = turn) -> None:
            nonlocal seen
            seen += 1
            if seen == turn + 1:
                raise ReadError("weights.bin: Input/output error")

        reader.hook = fail
        with pytest.raises(ReadError, match="Input/output error"):
            engine.run({"image": image})
        reader.hook = None
        assert reader.in_progress == 0
        assert np.allclose(engine.run({"image": image})[0]["logits"], expected, atol=1e-5)


def test_a_short_file_is_an_error(open_engine: OpenEngine, image: Tensor) -> None:
    engine, reader = open_engine()
    content = reader.content
    reader.content = content[:-100]
    with pytest.raises(ReadError, match="short"):
        engine.run({"image": image})
    reader.content = content
    engine.run({"image": image})


def test_cancelled_and_late_requests_leave_the_engine_usable(
    open_engine: OpenEngine, image: Tensor, expected: Tensor
) -> None:
    engine, reader = open_engine(ring=64 << 10)
    for after in range(0, len(engine.plan.steps), 5):
        asked = iter(range(10_000))
        with pytest.raises(CancelledError):
            engine.run(
                {"image": image},
                cancelled=lambda asked=asked, n=after: next(asked) >= n,  # type: ignore[misc]
            )
        assert reader.in_progress == 0
    with pytest.raises(DeadlineError):
        engine.run({"image": image}, deadline=0.0)
    assert np.allclose(engine.run({"image": image})[0]["logits"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "'image' is missing"),
        ({"picture": np.zeros(1)}, "unknown input 'picture'"),
        ({"image": np.zeros((1, 3, 16, 15), np.float32)}, r"float32\[1, 3, 16, 15\]"),
        ({"image": np.zeros((1, 3, 16, 16))}, "float64"),
    ],
)
def test_wrong_inputs_are_named(
    open_engine: OpenEngine, inputs: dict[str, NDArray[Any]], message: str
) -> None:
    engine, _ = open_engine()
    with pytest.raises(InputError, match=message):
        engine.run(inputs)


def test_outputs_are_copies(open_engine: OpenEngine, image: Tensor, expected: Tensor) -> None:
    engine, _ = open_engine()
    first = engine.run({"image": image})[0]["logits"]
    engine.run({"image": image * 2})
    assert np.allclose(first, expected, atol=1e-5)


def test_a_closed_engine_says_so(open_engine: OpenEngine, image: Tensor) -> None:
    engine, _ = open_engine()
    engine.close()
    with pytest.raises(EngineClosedError):
        engine.run({"image": image})
    engine.close()


def test_closed_between_a_look_at_the_inputs_and_the_sweep(
    open_engine: OpenEngine, image: Tensor
) -> None:
    engine, _ = open_engine()

    class Closing(dict[str, Tensor]):
        def __iter__(self) -> Iterator[str]:
            engine.close()
            return super().__iter__()

    with pytest.raises(EngineClosedError):
        engine.run(Closing(image=image))


def test_two_engines_share_a_pool_and_a_device(
    open_engine: OpenEngine, image: Tensor, expected: Tensor
) -> None:
    engines = [open_engine("2s", 64 << 10)[0], open_engine("seq")[0]]
    results: list[Tensor] = []

    def work(engine: Engine) -> None:
        results.extend(engine.run({"image": image})[0]["logits"] for _ in range(10))

    threads = [threading.Thread(target=work, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 20
    assert all(np.allclose(result, expected, atol=1e-5) for result in results)


def test_buffers_of_a_closed_engine_are_gone(pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program.as_compiled(pack)
    closed: list[int] = []
    original = Buffer.close

    def close(buffer: Buffer) -> None:
        closed.append(buffer.n_bytes)
        original(buffer)

    monkeypatch.setattr(Buffer, "close", close)
    pool = ReadPool()
    plan = make_plan(program, ARCHITECTURES["2s"])
    engine = Engine(
        program,
        plan,
        CpuDevice(),
        pool,
        MemoryReader(pack.weights_path.read_bytes()),
    )
    engine.open()
    engine.close()
    pool.close()
    held = [plan.ring_bytes, plan.resident_bytes, plan.arena_bytes]
    assert sorted(filter(None, closed)) == sorted(held)
