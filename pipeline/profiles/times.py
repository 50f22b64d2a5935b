"""Times that were measured, as distributions, of reads and copies; what distinguishes plans.

Seconds, bytes.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from models.records import PositiveInt, Record
from pipeline.planning.document import plan_checksum
from pipeline.planning.plan import Plan
from pipeline.profiles.delay_limits import Seconds


def interpolated(table: Mapping[int, float], at: int) -> float:
    """Return the value at ``at``: linear between entries, in proportion above the last one.

    Below the first size the time is that of the first: the cost of every operation, however small.
    """
    known = sorted(table)
    position = bisect_left(known, at)
    if position == len(known):
        return table[known[-1]] * at / known[-1]
    high = known[position]
    if position == 0 or high == at:
        return table[high]
    low = known[position - 1]
    share = (at - low) / (high - low)
    return table[low] + share * (table[high] - table[low])


def plan_key(plan: Plan) -> str:
    """Return what distinguishes plans of a pack: the architecture and all that a plan does."""
    return f"{plan.architecture.name}-{plan_checksum(plan)}"


# Distributions, r_i, c_i and k_i of seed 003.

_DIGITS = 9  # nanoseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution(Record):
    """What ``count`` measurements of one time gave, in seconds."""

    count: PositiveInt
    median: Seconds
    p95: Seconds
    max: Seconds

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Distribution":
        """Summarise at least one sample."""
        median, p95 = np.percentile(samples, (50, 95))
        return cls(
            count=len(samples),
            median=round(float(median), _DIGITS),
            p95=round(float(p95), _DIGITS),
            max=round(max(samples), _DIGITS),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTime(Record):
    """Of one read of ``n_bytes`` while ``depth`` are in flight, itself included."""

    n_bytes: PositiveInt
    depth: PositiveInt
    seconds: Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTime(Record):
    """Of one copy of ``n_bytes`` by the copy stage."""

    n_bytes: PositiveInt
    seconds: Distribution
