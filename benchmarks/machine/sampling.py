"""Memory over time: a thread looks every 15 ms and keeps all that it saw.

The kernel keeps the peak of a group's total, but none by kind; those come from samples. They miss what
comes and goes between two looks, and the kernel's own statistics lag by some hundred pages a core. The
kernel's peak of the total misses nothing: where ``sampled_total`` is well below it, so may the others be.
"""

import contextlib
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from types import TracebackType
from typing import Self

from models.processes import child_environment
from pipeline.peers.cgroup import MemoryGroup, Usage, memory_group

_SECONDS = 0.015
_MINUTE = 60.0


@dataclass(frozen=True)
class MemorySample:
    """What was in memory ``seconds`` after sampling began."""

    seconds: float
    usage: Usage


def peaks(samples: Sequence[MemorySample]) -> Usage:
    """Return the largest of each kind; they need not have been at the same time."""
    usages = [sample.usage for sample in samples]
    return Usage(
        max((usage.total for usage in usages), default=0),
        max((usage.anonymous for usage in usages), default=0),
        max((usage.file for usage in usages), default=0),
    )


def figures(peak_bytes: int, samples: Sequence[MemorySample]) -> dict[str, int]:
    """Return the peaks: of all by the kernel (page cache included) and as sampled, and of each kind.

    ``peak_bytes``: the kernel's; 0 where it does not say.
    """
    sampled = peaks(samples)
    return {
        "cgroup_peak_bytes": peak_bytes or sampled.total,
        "sampled_total_peak_bytes": sampled.total,
        "anonymous_peak_bytes": sampled.anonymous,
        "file_peak_bytes": sampled.file,
    }


def growth(samples: Sequence[MemorySample], began: float, ended: float) -> float | None:
    """Return by which part of it anonymous memory grew from the second minute to the last one.

    Medians of minutes: memory of requests comes and goes. ``began``, ``ended``: of the load, in seconds of
    the samples. None: it was shorter than four minutes, or memory was not sampled in one of the two.
    """
    if ended - began < 4 * _MINUTE:
        return None
    second = _median_anonymous(samples, began + _MINUTE, began + 2 * _MINUTE)
    last = _median_anonymous(samples, ended - _MINUTE, ended)
    return last / second - 1 if second and last else None


def _median_anonymous(samples: Sequence[MemorySample], since: float, until: float) -> float:
    """Return the median of the samples in [since, until); 0 where there are none."""
    seen = [sample.usage.anonymous for sample in samples if since <= sample.seconds < until]
    return median(seen) if seen else 0.0


class Sampler:
    """Calls ``look`` until the block ends; a ``look`` that raises OSError (process gone) ends it, too."""

    def __init__(self, look: Callable[[], Usage], seconds: float = _SECONDS) -> None:
        self._look, self._seconds = look, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._began = 0.0
        self.samples: list[MemorySample] = []

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                usage = self._look()
            except OSError:
                return
            self.samples.append(MemorySample(time.monotonic() - self._began, usage))
            self._stop.wait(self._seconds)

    def wait(self) -> None:
        """Wait until ``look`` has ended it."""
        self._thread.join()

    def now(self) -> float:
        """Return the seconds since sampling began."""
        return time.monotonic() - self._began


@dataclass(frozen=True)
class SampledGroup:
    """A cgroup whose memory is sampled."""

    group: MemoryGroup
    sampler: Sampler

    def figures(self) -> dict[str, int]:
        """Return the peaks so far."""
        return figures(self.group.peak_bytes, self.sampler.samples)


@contextlib.contextmanager
def sampled_group(name: str, limit_bytes: int | None = None) -> Iterator[SampledGroup]:
    """Yield a group that is sampled until the block ends, and then removed."""
    with memory_group(name, limit_bytes) as group, Sampler(group.usage) as sampler:
        yield SampledGroup(group, sampler)


@dataclass(frozen=True)
class FinishedRun:
    """A process that ran to its end in a group: its exit status, and the end of what it said on stderr.

    ``answered_seconds``: until its first line on stdout. ``figures``: the peaks.
    """

    status: int
    message: str
    seconds: float
    answered_seconds: float
    cpu_seconds: float
    oom_kills: int
    figures: dict[str, int]


def run_sampled(name: str, command: Sequence[str], limit_bytes: int | None = None) -> FinishedRun:
    """Run ``command`` to its end in a sampled group of its own."""
    with sampled_group(name, limit_bytes) as memory, tempfile.TemporaryFile("w+") as errors:
        began = time.perf_counter()
        process = subprocess.Popen(
            memory.group.inside(command),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=child_environment(),
        )
        assert process.stdout is not None
        with process.stdout as said:
            said.readline()
            answered = time.perf_counter() - began
            said.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        return FinishedRun(
            process.returncode,
            errors.read()[-500:],
            time.perf_counter() - began,
            answered,
            used.ru_utime + used.ru_stime,
            memory.group.oom_kills,
            memory.figures(),
        )
