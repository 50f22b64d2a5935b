"""Engines that a benchmark compares: open at once, with one pool of reads."""

from contextlib import ExitStack, closing

from loader.pool.pool import ReadPool
from loader.readers.interface import Reader
from models.runtime.sessions import wait_until_quiet
from pipeline.devices.base import Device
from pipeline.execution.engine import Engine
from pipeline.execution.given import Arrays
from pipeline.execution.opened import opened
from pipeline.execution.statistics import SweepStatistics
from pipeline.planning.plan import Plan
from pipeline.program.program import Program


class Engines(ExitStack):
    """Opens engines; when it ends, it closes them, and then the pool. ``native``: as of ``ReadPool``."""

    def __init__(self, device: Device, *, native: bool = True) -> None:
        super().__init__()
        self._device = device
        self._pool = self.enter_context(closing(ReadPool(native=native)))

    def open(
        self,
        program: Program,
        plan: Plan,
        reader: Reader | None = None,
        device: Device | None = None,
    ) -> Engine:
        """Return an open engine of ``plan``, on the device of all unless it has one of its own."""
        return self.enter_context(opened(program, plan, device or self._device, self._pool, reader))


def sweep(engine: Engine, inputs: Arrays) -> SweepStatistics:
    """Run ``engine`` once, and wait until nothing of it runs: no thread spins, no read is in flight."""
    statistics = engine.run(inputs)[1]
    engine.settle()
    wait_until_quiet()
    return statistics
