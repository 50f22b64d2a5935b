"""The latencies of the last two minutes, for a page that is opened later.

Invariant: at most MAX_MODELS models have samples, each at most MAX_SAMPLES samples.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from server.repository.entry import Entry

#: The age at which samples are dropped, and how many one model has: one a second.
MAX_AGE_SECONDS = 120.0
MAX_SAMPLES = 120
#: Models with samples; beyond that the one that has answered least recently is dropped.
MAX_MODELS = 32
_SECONDS = 1.0


class LatencySample(NamedTuple):
    """Mean seconds of the inferences that completed within a second, and of their waiting for weights.

    ``time``: on the clock of the history.
    """

    time: float
    delay: float
    stall: float


class _Counters(NamedTuple):
    """Counters of a model since it was loaded."""

    inferences: int
    inference_seconds: float
    stall_seconds: float


class LatencyHistory:
    """Samples of the models of ``entries``, once a second while ``run`` runs; not thread-safe."""

    def __init__(
        self, entries: Callable[[], Iterable[Entry]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._entries = entries
        self._clock = clock
        self._started_at = clock()
        self._counters: dict[str, _Counters] = {}
        self._samples: dict[str, deque[LatencySample]] = {}

    async def run(self) -> None:
        """LatencySample until cancelled."""
        while True:
            self.sample()
            await asyncio.sleep(_SECONDS)

    def sample(self) -> None:
        """Add a sample of each model that has answered since the last call."""
        now, previous, self._counters = self._clock(), self._counters, {}
        for entry in self._entries():
            if entry.worker is not None:
                served, before = entry.worker.served, previous.get(entry.name)
                if before is not None and before.inferences == served.sweeps:
                    self._counters[entry.name] = before
                    continue
                stalled = entry.worker.engine.statistics().stall_seconds
                counters = _Counters(served.sweeps, served.sweep_seconds, stalled)
                self._counters[entry.name] = counters
                if before is not None and counters.inferences > before.inferences:
                    self._add(entry.name, _sample(now, before, counters))
        for name in [name for name, samples in self._samples.items() if _is_old(samples, now)]:
            del self._samples[name]

    def _add(self, name: str, sample: LatencySample) -> None:
        samples = self._samples.pop(name, None)
        if samples is None:
            samples = deque(maxlen=MAX_SAMPLES)
            if len(self._samples) >= MAX_MODELS:
                del self._samples[next(iter(self._samples))]
        samples.append(sample)
        self._samples[name] = samples  # as the last one

    def as_dict(self) -> dict[str, object]:
        """Return the seconds since the start, and by model [age, delay, stall] in seconds."""
        self.sample()
        now = self._clock()
        return {
            "uptime_seconds": now - self._started_at,
            "samples": {
                name: [
                    [now - sample.time, sample.delay, sample.stall]
                    for sample in samples
                    if now - sample.time <= MAX_AGE_SECONDS
                ]
                for name, samples in self._samples.items()
            },
        }


def _sample(now: float, before: _Counters, after: _Counters) -> LatencySample:
    """Return the means between two states; counters of an engine begin again when it is opened again."""
    count = after.inferences - before.inferences
    stalled = max(after.stall_seconds - before.stall_seconds, 0.0)
    return LatencySample(
        now, (after.inference_seconds - before.inference_seconds) / count, stalled / count
    )


def _is_old(samples: deque[LatencySample], now: float) -> bool:
    return now - samples[-1].time > MAX_AGE_SECONDS
