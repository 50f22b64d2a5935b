"""What the operations of one exact plan did not exceed in many sweeps, and the bound on the delay it gives.

A longest time of every operation is too much: hundreds of kernels are never all slow in the same sweep.
Kept are usual times, and by how much all operations of one sweep together exceeded theirs, but for the
worst sweeps. An operation that takes e longer delays each later event by at most e (all are maxima, or
n-th smallest, of sums), so a sweep whose excesses add up to E takes at most E longer than a usual one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray

from models.records import Bounds, PositiveInt, Record
from pipeline.planning.plan import Choice, Plan
from pipeline.schedule.trace import TraceEvent
from pipeline.timing.durations import Durations, Services, services
from pipeline.timing.timeline import bound

# What is usual: the one of these percentiles that gives the lowest bound.
_PERCENTILES = (50, 75, 90, 95, 100)
# One sweep in fifty may be an accident of the machine that says nothing of the others.
_TYPICAL_PERCENT = 98
# Of the largest excess of the others: the next sweep may be a little worse.
_MARGIN = 1.1
_TICKS = 1e9  # nanoseconds

#: No operation takes longer, and no factor of one is larger: sums of what a profile says stay numbers.
MOST_SECONDS = 1e6
Seconds = Annotated[float, Bounds(ge=0, le=MOST_SECONDS)]
#: A complete sweep: the times of its operations, and its delay in seconds.
Sweep = tuple[Services, float]


@dataclass(frozen=True, kw_only=True)
class SweepLimits(Record):
    """What ``runs`` sweeps of one plan stayed within.

    ``choice``: of the plan. ``usual``: seconds of each operation, aligned with its stages.
    ``excess_seconds``: by how much all operations of a sweep together may exceed them.
    """

    architecture: str
    choice: Choice
    runs: PositiveInt
    usual: tuple[tuple[Seconds, ...], ...]
    excess_seconds: Seconds

    @classmethod
    def of(cls, plan: Plan, sweeps: Sequence[Sweep]) -> Self:
        """Take the limits of complete sweeps of ``plan``, at least one."""
        seen = [_seconds(plan, services) for services, _ in sweeps]
        samples = [np.array([rows[stage] for rows in seen]) for stage in range(len(plan.stages))]
        candidates = []
        for percentile in _PERCENTILES:
            usual = _usual(plan, samples, percentile)
            excesses = [
                _excess(plan, usual, services) + _after(services, delay_seconds)
                for services, delay_seconds in sweeps
            ]
            excess = float(np.percentile(excesses, _TYPICAL_PERCENT, method="higher"))
            candidates.append(
                cls(
                    architecture=plan.architecture.name,
                    choice=plan.choice,
                    runs=len(sweeps),
                    usual=usual,
                    excess_seconds=_MARGIN * excess,
                )
            )
        return min(candidates, key=lambda limits: limits.bound_seconds(plan))

    def bound_seconds(self, plan: Plan) -> float:
        """Return what no sweep of ``plan`` exceeds that stays within these limits."""
        return bound(plan.stages, Durations(self.usual, plan.choice.depth)) + self.excess_seconds

    def covers(self, plan: Plan, services: Services) -> bool:
        """Return whether the operations of a complete sweep stayed within these limits."""
        return _excess(plan, self.usual, services) <= self.excess_seconds


def _excess(plan: Plan, usual: Sequence[Sequence[float]], services: Services) -> float:
    """Return by how much the operations of a sweep exceeded what is usual, all together.

    In whole ticks: differences of times in seconds are off by less than that.
    """
    seconds = sum(
        max(seconds - most, 0.0)
        for row, limits in zip(_seconds(plan, services), usual, strict=True)
        for seconds, most in zip(row, limits, strict=False)
    )
    return round(seconds * _TICKS) / _TICKS


def _after(services: Services, delay_seconds: float) -> float:
    """Return the time between the end of the last kernel and that of the sweep."""
    ends = (service.end for service in services[-1] if service is not None)
    return max(delay_seconds - max(ends, default=0.0), 0.0)


def _seconds(plan: Plan, services: Services) -> list[list[float]]:
    """Return the seconds of the operations of each stage that belong to the sweep itself.

    Raises:
        ValueError: one of them is not complete.
    """
    rows = []
    for stage, row in zip(plan.stages, services, strict=True):
        own = row[: len(stage) - stage.ahead]
        seconds = [service.seconds for service in own if service is not None]
        if len(seconds) < len(own):
            raise ValueError(f"{len(own) - len(seconds)} {stage.name} operations are not complete")
        rows.append(seconds)
    return rows


def _usual(
    plan: Plan, samples: Sequence[NDArray[np.float64]], percentile: int
) -> tuple[tuple[float, ...], ...]:
    """Return the percentile of each operation, reads for the next sweep included."""
    rows = [
        (np.ceil(np.percentile(sample, percentile, axis=0) * _TICKS) / _TICKS).tolist()
        for sample in samples
    ]
    head = _head(plan, rows[0])
    reads = (*head, *rows[0][len(head) :])
    return (reads + reads[: len(head)], *map(tuple, rows[1:]))


def _head(plan: Plan, reads: Sequence[float]) -> tuple[float, ...]:
    """Return the times of reads that the sweep before may have begun: for their bytes as the others'.

    What was seen of them is only what was left of them.
    """
    ahead = plan.stages[0].ahead
    lengths = [read.n_bytes for read in plan.reads]
    rest = list(zip(reads[ahead:], lengths[ahead:], strict=True))
    pace = float(np.median([seconds / length for seconds, length in rest])) if rest else 0.0
    return tuple(
        max(seen, pace * length) for seen, length in zip(reads[:ahead], lengths, strict=False)
    )


# Watching the delay bound: was a sweep within what the bound assumes, and did it keep to the bound?


@dataclass(frozen=True)
class DelayVerdict:
    """``within``: r, c and k stayed within the limits. ``exceeded``: the delay is above the bound.

    Both at once contradict the analysis; ``exceeded`` alone is a sweep that the bound says nothing of.
    """

    within: bool
    exceeded: bool

    @property
    def violation(self) -> bool:
        return self.within and self.exceeded


class BoundWatch:
    """Judges the sweeps of ``plan`` and counts. Pure: fed with traces, one thread at a time."""

    def __init__(self, plan: Plan, limits: SweepLimits) -> None:
        self._plan = plan
        self._limits = limits
        self.bound_seconds = limits.bound_seconds(plan)
        self.sweeps = self.within = self.exceeded = self.violations = 0

    def see(self, events: Iterable[TraceEvent], delay_seconds: float) -> DelayVerdict:
        """Judge one complete sweep by its trace and its delay.

        Raises:
            ValueError: the trace is not that of a complete sweep.
        """
        served = services(self._plan.stages, events, self._plan.choice.depth)
        verdict = DelayVerdict(
            self._limits.covers(self._plan, served),
            delay_seconds > self.bound_seconds,
        )
        self.sweeps += 1
        self.within += verdict.within
        self.exceeded += verdict.exceeded
        self.violations += verdict.violation
        return verdict
