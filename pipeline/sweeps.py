"""Engines that are opened to be measured, and their sweeps one after the other."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from loader.files import open_reader
from loader.pool import ReadPool
from models.pack import Pack
from pipeline.devices.base import Device
from pipeline.devices.staged import StagedDevice
from pipeline.engine import Engine, Tensors
from pipeline.planning.plan import Plan
from pipeline.trace import TraceEvent


@contextmanager
def opened(pack: Pack, plan: Plan, device: Device, pool: ReadPool) -> Iterator[Engine]:
    """Open an engine of ``plan``, with a copy stage in case it has one, and close it."""
    staged = StagedDevice(device)
    engine = Engine(pack, plan, staged, pool, open_reader(pack.weights_path))
    try:
        engine.open()
        yield engine
    finally:
        engine.close()
        staged.close()


@dataclass(frozen=True)
class Measured:
    """A sweep and its trace; ``outside_seconds``: of its request, all else."""

    events: list[TraceEvent]
    delay_seconds: float
    outside_seconds: float


def measured_sweeps(engine: Engine, inputs: Tensors) -> Iterator[Measured]:
    """Run sweeps without end."""
    while True:
        events: list[TraceEvent] = []
        began = time.perf_counter()
        statistics = engine.run(inputs, record=events.append)[1]
        took = time.perf_counter() - began
        delay = statistics.delay_seconds
        yield Measured(events, delay, max(took - delay, 0.0))
