"""Sweeps of an open engine, one after the other, measured."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.runtime.sessions import wait_until_quiet
from pipeline.execution.engine import Engine
from pipeline.execution.given import Arrays
from pipeline.schedule.trace import TraceEvent

# Of the processor's last cache where the system does not say, and the most that is written for it.
_USUAL_CACHE_BYTES = 8 << 20
_MOST_CACHE_BYTES = 64 << 20
# Threads spin for a shorter time; who reads beside the sweeps never sleeps.
_MOST_QUIET_SECONDS = 0.1


@dataclass(frozen=True)
class Measured:
    """A sweep and its trace."""

    events: list[TraceEvent]
    delay_seconds: float


@dataclass(frozen=True)
class Answered:
    """A sweep that was not recorded; ``outside_seconds``: of its request, all else."""

    delay_seconds: float
    outside_seconds: float


def measured_sweeps(engine: Engine, inputs: Arrays) -> Iterator[Measured]:
    """Run sweeps without end, each after an idle moment."""
    for _ in _idle_moments():
        events: list[TraceEvent] = []
        statistics = engine.run(inputs, record=events.append)[1]
        yield Measured(events, statistics.delay_seconds)


def answered_sweeps(engine: Engine, inputs: Arrays) -> Iterator[Answered]:
    """Run sweeps as ``measured_sweeps`` does, which nobody records: that may take as long as all else."""
    for _ in _idle_moments():
        began = time.perf_counter()
        delay = engine.run(inputs)[1].delay_seconds
        yield Answered(delay, max(time.perf_counter() - began - delay, 0.0))


def _idle_moments() -> Iterator[None]:
    """Yield where a request finds what it does after an idle moment: no thread spins, no data in caches."""
    others = np.zeros(cache_bytes(), np.uint8)
    while True:
        others += 1
        wait_until_quiet(_MOST_QUIET_SECONDS)
        yield


def cache_bytes(caches: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Return the size of the processor's largest cache, or what is usual; 64 MiB at most."""
    sizes = [file.read_text().strip() for file in caches.glob("index*/size")]
    known = [int(size[:-1]) << 10 for size in sizes if size.endswith("K")]
    return min(max(known, default=_USUAL_CACHE_BYTES), _MOST_CACHE_BYTES)
