"""Joules between two moments: of the board's power rails, or of the processor's packages.

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

from models.errors import ModelError

# What the kernel measures of power: INA3221 rails and RAPL package counters, as files of sysfs.
#
# Sources: Linux Documentation/hwmon/ina3221.rst, hwmon/sysfs-interface.rst, power/powercap/powercap.rst.

# The input of a whole module, on boards that measure it; the other rails are parts of it.
_WHOLE = "VDD_IN"


class PowerError(ModelError):
    """A rail or a counter cannot be read; the message names the file."""


@dataclass(frozen=True)
class Rail:
    """One labelled channel of an INA3221: a file in millivolts and one in milliamperes."""

    label: str
    voltage: Path
    current: Path

    def watts(self) -> float:
        """Return the power now.

        Raises:
            PowerError: a file is gone, is not readable or holds no number.
        """
        return _number(self.voltage) * _number(self.current) / 1e6


@dataclass(frozen=True)
class Package:
    """The energy counter of one processor package, in microjoules; after ``limit`` comes 0."""

    name: str
    counter: Path
    limit: int

    def microjoules(self) -> int:
        """Return the counter.

        Raises:
            PowerError: as ``Rail.watts``; most kernels let only root read it.
        """
        return _number(self.counter)

    def joules(self, before: int, after: int) -> float:
        """Return the energy between two readings, less than one turn of the counter apart."""
        return (after - before + (self.limit if after < before else 0)) / 1e6


def find_rails(root: Path) -> tuple[Rail, ...]:
    """Return the rails under ``root`` (/sys), none where no INA3221 is; all were read once.

    Channels that have no label or are switched off do not count.

    Raises:
        PowerError: a rail cannot be read: the sum of the others would be too small.
    """
    rails = []
    for chip in sorted(root.glob("bus/i2c/devices/*/hwmon/hwmon*")):
        if not _text(chip / "name").startswith("ina3221"):
            continue
        for channel in (1, 2, 3):
            label = _text(chip / f"in{channel}_label")
            if label and _text(chip / f"in{channel}_enable") != "0":
                files = chip / f"in{channel}_input", chip / f"curr{channel}_input"
                rails.append(Rail(label, *files))
    rails = [rail for rail in rails if rail.label == _WHOLE] or rails
    for rail in rails:
        rail.watts()
    return tuple(rails)


def _find_packages(root: Path) -> tuple[Package, ...]:
    """Return the RAPL counters of processor packages under ``root`` (/sys); all were read once.

    Cores, graphics and memory inside a package, and the platform around it, do not count again.

    Raises:
        PowerError: a counter or its limit cannot be read.
    """
    packages = []
    for zone in sorted(root.glob("class/powercap/intel-rapl:*")):
        name = _text(zone / "name")
        if name.startswith("package-"):
            limit = _number(zone / "max_energy_range_uj")
            packages.append(Package(name, zone / "energy_uj", limit))
    for package in packages:
        package.microjoules()
    return tuple(packages)


def _text(path: Path) -> str:
    """Return what a file says, nothing where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return ""
    except OSError as exc:
        raise PowerError(f"{path}: {exc.strerror or exc}") from exc


def _number(path: Path) -> int:
    try:
        return int(path.read_bytes())
    except OSError as exc:
        raise PowerError(f"{path}: {exc.strerror or exc}") from exc
    except ValueError:
        raise PowerError(f"{path}: not a number") from None


# A meter for each of the two, and for neither.

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
        if packages := _find_packages(root):
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
