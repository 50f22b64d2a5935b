"""Sweeps of an open engine, one after the other, measured."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.execution.engine import Engine
from pipeline.execution.given import Arrays
from pipeline.schedule.trace import TraceEvent

# Of the processor's last cache where the system does not say, and the most that is written for it.
_USUAL_CACHE_BYTES = 8 << 20
_MOST_CACHE_BYTES = 64 << 20


@dataclass(frozen=True)
class Measured:
    """A sweep and its trace; ``outside_seconds``: of its request, all else."""

    events: list[TraceEvent]
    delay_seconds: float
    outside_seconds: float


def measured_sweeps(engine: Engine, inputs: Arrays) -> Iterator[Measured]:
    """Run sweeps without end. Each finds what a request after an idle moment does: no data in caches."""
    others = np.zeros(cache_bytes(), np.uint8)
    while True:
        others += 1
        events: list[TraceEvent] = []
        began = time.perf_counter()
        statistics = engine.run(inputs, record=events.append)[1]
        took = time.perf_counter() - began
        delay = statistics.delay_seconds
        yield Measured(events, delay, max(took - delay, 0.0))


def cache_bytes(caches: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Return the size of the processor's largest cache, or what is usual; 64 MiB at most."""
    sizes = [file.read_text().strip() for file in caches.glob("index*/size")]
    known = [int(size[:-1]) << 10 for size in sizes if size.endswith("K")]
    return min(max(known, default=_USUAL_CACHE_BYTES), _MOST_CACHE_BYTES)
