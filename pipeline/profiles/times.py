"""Times that were measured, as distributions: of reads, copies and kernels, r_i, c_i and k_i of seed 003.

Seconds, bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, PositiveInt

from pipeline.profiles.delay_limits import Seconds

Quantile = Literal["median", "p95", "max"]
_DIGITS = 9  # nanoseconds

_EXACTLY = ConfigDict(extra="forbid")
#: Of models of pydantic, which would keep strings for as long as the process lives.
RECORD = ConfigDict(frozen=True, extra="forbid", cache_strings="keys")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """What ``count`` measurements of one time gave, in seconds. A profile has thousands of them."""

    __pydantic_config__ = _EXACTLY

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

    def at(self, quantile: Quantile) -> float:
        return float(getattr(self, quantile))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTime:
    """Of one read of ``n_bytes`` while ``depth`` are in flight, itself included."""

    __pydantic_config__ = _EXACTLY

    n_bytes: PositiveInt
    depth: PositiveInt
    seconds: Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTime:
    """Of one copy of ``n_bytes`` by the copy stage."""

    __pydantic_config__ = _EXACTLY

    n_bytes: PositiveInt
    seconds: Distribution


class Overlap(BaseModel):
    """What changes when reads, copies and kernels run beside each other in one order of operations.

    Factors of r and c; ``slowdown`` and ``disturbance`` as in ``Durations``.
    """

    model_config = RECORD

    read: Seconds = 1.0
    copying: Seconds = 1.0
    slowdown: Seconds = 0.0
    disturbance: Seconds = 0.0
