"""Workers as the service has them, of engines that a benchmark plans, and clients that ask them."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from loader.pool.pool import ReadPool
from loader.readers.disk import CorelessReader, Pace, PacedReader
from loader.readers.files import open_reader
from models.packs.pack import Pack
from pipeline.devices.base import Kernel, Launch
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.device_memory import Memory
from pipeline.execution.engine import Engine
from pipeline.execution.opened import open_engine
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from server.repository.served_engine import Running
from server.repository.worker import Worker
from server.scheduling.dispatcher import Dispatcher
from server.scheduling.sweeps import Batching

LIMIT_SECONDS = 600.0
Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class SimulatedMachine:
    """What computes, and what reads at which pace; ``reads_take_no_core``: as CorelessReader."""

    device: CpuDevice
    pool: ReadPool
    pace: Pace | None = None
    reads_take_no_core: bool = False

    def engine(self, pack: Pack, plan: Plan, device: CpuDevice | None = None) -> Engine:
        """Return an open engine; the caller closes it."""
        reader = open_reader(pack.weights_path)
        if self.reads_take_no_core:
            reader = CorelessReader(reader)
        paced = reader if self.pace is None else PacedReader(reader, self.pace)
        return open_engine(Program.as_compiled(pack), plan, device or self.device, self.pool, paced)

    def worker(
        self, pack: Pack, plan: Plan, dispatcher: Dispatcher, batching: Batching | None = None
    ) -> Worker:
        """Return what serves ``pack``; the caller closes it."""
        engine = self.engine(pack, plan)
        running = Running(engine, open_reader(pack.weights_path))
        return Worker(running, 64, dispatcher, batching or Batching())


class _Nothing(Kernel):
    def bind(
        self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Memory | None = None
    ) -> Launch:
        return lambda: None


class _Sleeps(Kernel):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def bind(
        self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Memory | None = None
    ) -> Launch:
        return lambda: time.sleep(self._seconds)


class Sleeping(CpuDevice):
    """Sleeps instead of computing, so that what others do on the machine does not matter."""

    def __init__(self, kernel_seconds: float) -> None:
        super().__init__()
        self._kernel_seconds = kernel_seconds

    def load(self, graph: bytes) -> Kernel:
        return _Sleeps(self._kernel_seconds)


class ReadsOnly(CpuDevice):
    """Computes nothing, so that a sweep takes what its reads take."""

    def load(self, graph: bytes) -> Kernel:
        return _Nothing()


@contextmanager
def machine(
    pace: Pace | None = None, device: CpuDevice | None = None, reads_take_no_core: bool = False
) -> Iterator[SimulatedMachine]:
    """Yield a machine that computes with ``device``, or with all cores, and end its threads."""
    with ExitStack() as stack:
        pool = ReadPool()
        stack.callback(pool.close)
        yield SimulatedMachine(device or CpuDevice(), pool, pace, reads_take_no_core)


def streamed(pack: Pack, ring_bytes: int, lanes: int = 1) -> Plan:
    """Return the plan of ``pack`` through a ring of so many bytes."""
    choice = Choice(ring_bytes, ahead="tail", lanes=lanes)
    return make_plan(Program.as_compiled(pack), ARCHITECTURES["2s"], choice=choice)


def resident(pack: Pack) -> Plan:
    """Return the plan of ``pack`` with all weights in memory."""
    return make_plan(Program.as_compiled(pack), ARCHITECTURES["pre"])


def sweep_seconds(engine: Engine, inputs: Tensors, sweeps: int) -> float:
    """Return what a sweep takes on average, after one that does not count; closes the engine."""
    try:
        engine.run(inputs)
        began = time.perf_counter()
        for _ in range(sweeps):
            engine.run(inputs)
        return (time.perf_counter() - began) / sweeps
    finally:
        engine.close()


async def asked(worker: Worker, inputs: Tensors, clients: int, requests: int) -> list[float]:
    """Have ``clients`` ask until there are so many answers; return the delay of each, in seconds."""
    delays: list[float] = []
    left = iter(range(requests))

    async def client() -> None:
        for _ in left:
            began = time.perf_counter()
            await worker.infer(dict(inputs), LIMIT_SECONDS)
            delays.append(time.perf_counter() - began)

    await asyncio.gather(*(client() for _ in range(clients)))
    return delays
