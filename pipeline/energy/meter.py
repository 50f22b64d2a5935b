"""Energy of what runs between two moments: of the board's power rails, or of the processor's packages.

It is the energy of all that these feed, idle power and other processes included.
"""

import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from pipeline.energy.power import Package, PowerError, Rail, find_packages, find_rails

Clock = Callable[[], float]


@dataclass
class Energy:
    """One measurement: joules, set when it ends, and their source; None and why there are none."""

    source: str
    joules: float | None = None


class EnergyMeter(Protocol):
    """Measures the body of a ``with`` statement; never raises, whatever becomes of its files."""

    @property
    def source(self) -> str:
        """What it reads, or why it measures nothing."""

    def measure(self) -> AbstractContextManager[Energy]:
        """Measure what runs inside."""


@dataclass(frozen=True)
class NoMeter:
    """What stands in where nothing can be measured: no joules, and the reason as the source."""

    reason: str

    @property
    def source(self) -> str:
        """The reason, said to be one."""
        return f"not available here: {self.reason}"

    @contextmanager
    def measure(self) -> Iterator[Energy]:
        """Measure nothing."""
        yield Energy(self.source)


class RailMeter:
    """Sums rails every ``period`` seconds, in a thread that lives while a measurement runs."""

    def __init__(self, rails: Sequence[Rail], period: float, clock: Clock) -> None:
        self.source = "ina3221: " + ", ".join(rail.label for rail in rails)
        self._rails = rails
        self._period = period
        self._clock = clock

    @contextmanager
    def measure(self) -> Iterator[Energy]:
        """Measure what runs inside; a rail that vanishes meanwhile costs the joules, nothing else."""
        energy, samples, failures = Energy(self.source), [], []
        stop = threading.Event()

        def sample() -> None:
            try:
                samples.append((self._clock(), sum(rail.watts() for rail in self._rails)))
            except PowerError as exc:
                failures.append(exc)

        def keep_sampling() -> None:
            while not failures and not stop.wait(self._period):
                sample()

        sample()
        thread = threading.Thread(target=keep_sampling, name="energy", daemon=True)
        thread.start()
        started = self._clock()
        try:
            yield energy
        finally:
            ended = self._clock()
            stop.set()
            thread.join()
            sample()
            if failures:
                energy.source = NoMeter(str(failures[0])).source
            else:
                energy.joules = integrate(samples, started, ended)


class PackageMeter:
    """Reads the packages' own counters before and after; for less than one turn, minutes at least."""

    def __init__(self, packages: Sequence[Package]) -> None:
        self.source = "rapl: " + ", ".join(package.name for package in packages)
        self._packages = packages

    @contextmanager
    def measure(self) -> Iterator[Energy]:
        """Measure what runs inside; a counter that vanishes costs the joules, nothing else."""
        energy, readings, failures = Energy(self.source), [], []

        def read() -> None:
            try:
                readings.append([package.microjoules() for package in self._packages])
            except PowerError as exc:
                failures.append(exc)

        read()
        try:
            yield energy
        finally:
            read()
            if failures:
                energy.source = NoMeter(str(failures[0])).source
            else:
                spent = zip(self._packages, *readings, strict=True)
                energy.joules = sum(package.joules(*pair) for package, *pair in spent)


def find_meter(
    root: Path = Path("/sys"), period: float = 0.01, clock: Clock = time.perf_counter
) -> EnergyMeter:
    """Return what measures energy here: a board's rails, else a PC's packages, else a NoMeter.

    ``period`` and ``clock`` are in seconds.
    """
    reasons = []
    try:
        if rails := find_rails(root):
            return RailMeter(rails, period, clock)
        reasons.append("no INA3221 power rails")
    except PowerError as exc:
        reasons.append(str(exc))
    try:
        if packages := find_packages(root):
            return PackageMeter(packages)
        reasons.append("no RAPL packages")
    except PowerError as exc:
        reasons.append(str(exc))
    return NoMeter(", ".join(reasons))


def integrate(samples: Sequence[tuple[float, float]], start: float, stop: float) -> float:
    """Return joules from ``start`` to ``stop``: the area under straight lines between samples.

    Samples are seconds and watts, at least one, in order of time; outside them power is taken as
    at the nearest. Reading takes time, so the first and last lie a little outside the interval.
    """
    times = [moment for moment, _ in samples]
    inside = samples[bisect_right(times, start) : bisect_left(times, stop)]
    points = [(start, _power(samples, start)), *inside, (stop, _power(samples, stop))]
    return sum((b - a) * (p + q) / 2 for (a, p), (b, q) in pairwise(points))


def _power(samples: Sequence[tuple[float, float]], moment: float) -> float:
    """Return the power at ``moment``, on the line between the samples around it."""
    after = bisect_left(samples, moment, key=lambda sample: sample[0])
    if after == 0 or after == len(samples):
        return samples[min(after, len(samples) - 1)][1]
    (a, p), (b, q) = samples[after - 1], samples[after]
    return p + (q - p) * (moment - a) / (b - a)
