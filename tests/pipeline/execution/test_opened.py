"""Opening an engine: it answers and is closed in order; where a step fails nothing stays open."""

import errno
from collections.abc import Callable
from typing import NoReturn

import pytest

from loader.errors import ReadError
from loader.pool.pool import ReadPool
from loader.readers.in_memory import MemoryReader
from models.packs.pack import Pack
from pipeline.devices.base import Device, DeviceError, Kernel
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.memory import Memory, Use
from pipeline.execution.errors import EngineClosedError
from pipeline.execution.leases import Lease, OwnArena
from pipeline.execution.opened import open_engine, opened
from pipeline.measuring.sample_inputs import random_inputs
from pipeline.planning.make import make_plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES


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


def lease_of(device: Device, step: str) -> Callable[[], Lease]:
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


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("lease", MemoryError),
        ("memory", OSError),
        ("kernels", DeviceError),
        ("residents", ReadError),
    ],
)
def test_what_fails_leaves_nothing_open(tiny_pack: Pack, step: str, error: type[Exception]) -> None:
    program = Program.as_compiled(tiny_pack)
    plan = make_plan(program, ARCHITECTURES["pre"])
    device, pool = Failing(step), ReadPool()
    before = pool.statistics().clients
    content = tiny_pack.weights_path.read_bytes()
    reader = MemoryReader(content[:4096] if step == "residents" else content)
    with pytest.raises(error):
        open_engine(program, plan, device, pool, reader, lease=lease_of(device, step))
    assert reader.closed
    assert device.held == 0
    assert pool.statistics().clients == before
    pool.close()
