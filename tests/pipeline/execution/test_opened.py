"""Opening an engine: it answers and is closed in order; where a step fails nothing stays open."""

import errno
import threading
import time
from collections.abc import Callable
from typing import NoReturn

import pytest

from loader.errors import ReadError
from loader.pool.pool import ReadPool
from loader.readers.fakes import MemoryReader
from models.packs.pack import Pack
from pipeline.devices.base import Device, DeviceError, Kernel
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.device_memory import HostMemory, Memory, Use
from pipeline.execution.errors import EngineClosedError
from pipeline.execution.leases import ArenaLease, OwnArena
from pipeline.execution.opened import open_engine, opened
from pipeline.measuring.sweeps import random_inputs
from pipeline.planning.make import make_plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import over


class Failing(CpuDevice):
    """Notes the memory that is held; fails at one step."""

    def __init__(self, step: str) -> None:
        super().__init__(1)
        self.step = step
        self.held = 0

    def allocate(self, use: Use, n_bytes: int, slots: int = 1) -> Memory:
        if self.step == "memory" and use == "scratch":
            raise OSError(errno.ENOMEM, "no memory")
        memory = super().allocate(use, n_bytes, slots)
        self.held += 1
        close = memory.close

        def closed() -> None:
            self.held -= 1
            close()

        memory.close = closed  # type: ignore[method-assign]
        return memory

    def load(self, graph: bytes) -> Kernel:
        if self.step == "kernels":
            raise DeviceError("no such instruction")
        return super().load(graph)


def refused() -> NoReturn:
    raise MemoryError("no space to share")


def lease_of(device: Device, step: str) -> Callable[[], ArenaLease]:
    return refused if step == "lease" else lambda: OwnArena(device, 1 << 20)


@pytest.mark.parametrize("name", ["pre", "2s", "async"])
def test_an_engine_answers_inside_and_is_closed_outside(tiny_pack: Pack, name: str) -> None:
    program = Program.as_compiled(tiny_pack)
    plan = make_plan(program, ARCHITECTURES[name])
    inputs, device = random_inputs(program), Failing("none")
    with opened(program, plan, device) as engine:
        assert engine.run(inputs)[0]
    with pytest.raises(EngineClosedError):
        engine.run(inputs)
    reader = MemoryReader(tiny_pack.weights_path.read_bytes())
    with (
        pytest.raises(KeyError),
        opened(program, plan, device, reader=reader),
    ):
        raise KeyError
    assert reader.closed
    assert device.held == 0


@over(
    "step, error",
    [
        ("lease", MemoryError),
        ("memory", OSError),
        ("kernels", DeviceError),
        ("residents", ReadError),
    ],
)
@over("at_once", [True, False])
def test_what_fails_leaves_nothing_open(
    tiny_pack: Pack, step: str, error: type[Exception], at_once: bool
) -> None:
    program = Program.as_compiled(tiny_pack)
    plan = make_plan(program, ARCHITECTURES["pre"])
    device, pool = Failing(step), ReadPool()
    before = pool.statistics().clients
    content = tiny_pack.weights_path.read_bytes()
    reader = MemoryReader(content[:4096] if step == "residents" else content)
    with pytest.raises(error):
        open_engine(
            program, plan, device, pool, reader, lease=lease_of(device, step), at_once=at_once
        )
    assert reader.closed
    assert device.held == 0
    assert pool.statistics().clients == before
    pool.close()


class Slow(HostMemory):
    """Notes what is taken from the system, each time until ``go_on``."""

    def __init__(self, n_bytes: int, taken: list[int], go_on: threading.Event) -> None:
        super().__init__(n_bytes)
        self.taken, self.go_on = taken, go_on

    def populate(self, offset: int, length: int) -> None:
        self.taken.append(offset)
        self.go_on.wait(60)


def test_memory_is_taken_beside_what_is_done_next_and_no_longer_than_it_is_there(
    tiny_pack: Pack,
) -> None:
    program = Program.as_compiled(tiny_pack)
    plan = make_plan(program, ARCHITECTURES["auto"])
    taken: list[int] = []
    go_on = threading.Event()
    device, pool = CpuDevice(1), ReadPool()
    lease = OwnArena(device, 0)
    lease.memory = Slow(64 << 20, taken, go_on)
    engine = open_engine(program, plan, device, pool, lease=lambda: lease, at_once=True)
    while not taken:  # the ring is small
        time.sleep(0.001)
    assert engine.run(random_inputs(program))[0]  # it does not wait
    closing = threading.Thread(target=engine.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()  # memory is not unmapped while the system fills it
    go_on.set()
    closing.join()
    assert taken == [0]
    pool.close()
