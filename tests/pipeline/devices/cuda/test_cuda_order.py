"""The order of copies and kernels: no buffer is used before its event, whatever the driver's queues do.

The engine's schedule, sweeper and device run as they are, on a driver that records what is enqueued and
waited for. Vector clocks judge the record: two operations that touch the same bytes, one of them writing,
must be ordered by streams, by events, or by the host having waited.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.errors import ReadError
from loader.pool.pool import ReadPool
from loader.readers.fakes import Hook, MemoryReader
from loader.readers.interface import Reader
from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import Pack, open_pack
from pipeline.devices.base import Done, Kernel, Launch
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.cuda.device import CudaDevice
from pipeline.devices.cuda.memory_kinds import DeviceArray
from pipeline.devices.device_memory import Memory
from pipeline.devices.names import KINDS, Kind
from pipeline.execution.engine import Engine
from pipeline.execution.opened import opened
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import examples
from tests.pipeline.devices.cuda.fake_driver import Extent, FakeDriver, Operation
from tests.pipeline.execution.test_engine import small_network


class TouchingDevice(CudaDevice):
    """Its kernels compute nothing: they say what they read and write."""

    def load(self, graph: bytes) -> Kernel:
        return TouchingKernel(self)


class TouchingKernel(Kernel):
    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def bind(
        self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Memory | None = None
    ) -> Launch:
        operation = Operation(
            "launch",
            "touch",
            self._device.kernel_stream,
            reads=tuple(map(extent, inputs)),
            writes=tuple(map(extent, outputs)),
        )
        driver = self._device.driver
        assert isinstance(driver, FakeDriver)
        return lambda: driver.enqueue(operation)


def extent(array: DeviceArray) -> Extent:
    return array.address, array.address + array.n_bytes


class NotedReader(MemoryReader):
    """Notes in the driver's log when the disk begins and has ended to write."""

    def __init__(self, content: bytes, driver: FakeDriver) -> None:
        super().__init__(content)
        self._driver = driver

    def read_into(self, offset: int, target: memoryview) -> None:
        start = np.frombuffer(target, np.uint8).ctypes.data
        written = ((start, start + target.nbytes),)
        self._driver.log.append(Operation("disk", "disk", writes=written))
        super().read_into(offset, target)
        self._driver.log.append(Operation("disk", "disk", writes=written))


def races(log: Sequence[Operation]) -> list[str]:
    """Return the pairs of operations on the same bytes that nothing orders."""
    host = 0
    clocks: dict[int, dict[int, int]] = {host: {}}
    events: dict[tuple[int, int], dict[int, int]] = {}
    seen: list[tuple[int, int, Operation]] = []
    found = []
    for operation in log:
        if operation.kind == "synchronize":
            join(clocks[host], events[operation.event, operation.count])
            continue
        own = host if operation.kind == "disk" else operation.stream
        clock = clocks.setdefault(own, {})
        join(clock, clocks[host])  # what is enqueued comes after what the host has seen end
        clock[own] = clock.get(own, 0) + 1
        if operation.kind == "record":
            events[operation.event, operation.count] = dict(clock)
        for stream, at, other in seen:
            if meet(operation, other) and clock.get(stream, 0) < at:
                found.append(f"{other.name} and {operation.name}")
        if operation.reads or operation.writes:
            seen.append((own, clock[own], operation))
    return found


def join(clock: dict[int, int], other: dict[int, int]) -> None:
    for stream, count in other.items():
        clock[stream] = max(clock.get(stream, 0), count)


def meet(one: Operation, other: Operation) -> bool:
    def overlap(some: Sequence[Extent], more: Sequence[Extent]) -> bool:
        return any(a[0] < b[1] and b[0] < a[1] for a in some for b in more)

    return (
        overlap(one.writes, other.writes)
        or overlap(one.writes, other.reads)
        or overlap(one.reads, other.writes)
    )


@contextmanager
def engine_of(plan: Plan, pack: Pack, device: CudaDevice, reader: Reader) -> Iterator[Engine]:
    with (
        closing(device),
        closing(ReadPool()) as pool,
        opened(Program.as_compiled(pack), plan, device, pool, reader) as engine,
    ):
        yield engine


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    folder = tmp_path_factory.mktemp("repository")
    onnx.save(small_network(), folder / "small.onnx")
    options = CompileOptions(chunk_bytes=64 << 10)
    return open_pack(compile_onnx(folder / "small.onnx", folder / "small", options))


NAMES = st.sampled_from(sorted(ARCHITECTURES))


@examples(5, many=300)
@given(
    name=NAMES,
    rings=st.integers(1, 4),
    driver=st.builds(FakeDriver, st.integers(0, 2**31), st.sampled_from([0.0, 0.3, 0.9])),
    kind=st.sampled_from(KINDS),
    ahead=st.sampled_from(["never", "idle", "tail"]),
)
def test_no_buffer_is_used_before_its_event(
    pack: Pack,
    name: str,
    rings: int,
    driver: FakeDriver,
    kind: Kind,
    ahead: Any,
) -> None:
    device = TouchingDevice(driver, CpuDevice(), kind)
    architecture = device.adapt(ARCHITECTURES[name])
    slots = architecture.slots or 1
    ring = None if architecture.resident else rings * slots * pack.manifest.largest_chunk_bytes
    plan = make_plan(
        Program.as_compiled(pack),
        architecture,
        choice=Choice(ring, read_bytes=96 << 10, ahead=ahead),
    )
    with engine_of(
        plan, pack, device, NotedReader(pack.weights_path.read_bytes(), driver)
    ) as engine:
        for _ in range(2):
            engine.run(inputs_of(pack))
        engine.settle()
    assert races(driver.log) == []
    assert (driver.used_bytes, driver.held) == (0, 0)


def inputs_of(pack: Pack) -> dict[str, Any]:
    return {port.name: np.zeros(port.shape, port.dtype) for port in pack.manifest.inputs}


class HastyDevice(TouchingDevice):
    """Takes kernels that were launched for kernels that have ended."""

    def finish(self, done: Done) -> None:
        done(None, 0.0)


@pytest.mark.parametrize("name", ["async", "2s"])
def test_the_judge_finds_what_an_event_would_have_ordered(pack: Pack, name: str) -> None:
    driver = FakeDriver(eager=0.0)
    device = HastyDevice(driver, CpuDevice())
    plan = make_plan(Program.as_compiled(pack), ARCHITECTURES[name])
    reader = NotedReader(pack.weights_path.read_bytes(), driver)
    with engine_of(plan, pack, device, reader) as engine:
        engine.run(inputs_of(pack))
    assert any("touch and" in race for race in races(driver.log))


def fails_once() -> Hook:
    count = itertools.count()

    def hook(offset: int, length: int) -> None:
        if next(count) == 2:
            raise ReadError(f"{offset}: Input/output error")

    return hook


def test_a_copy_that_fails_names_itself_and_the_next_sweep_works(
    pack: Pack,
) -> None:
    driver = FakeDriver()
    device = TouchingDevice(driver, CpuDevice())
    plan = make_plan(Program.as_compiled(pack), ARCHITECTURES["async"])
    reader = NotedReader(pack.weights_path.read_bytes(), driver)
    with engine_of(plan, pack, device, reader) as engine:
        engine.run(inputs_of(pack))
        for fault in ("touch", "copy", "record"):
            driver.fail[fault] = 1
            with pytest.raises(Exception, match=f"{fault}: injected"):
                engine.run(inputs_of(pack))
            engine.run(inputs_of(pack))
        reader.hook = fails_once()
        with pytest.raises(ReadError):
            engine.run(inputs_of(pack))
        engine.run(inputs_of(pack))
    assert races(driver.log) == []
