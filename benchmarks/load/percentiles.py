"""What becomes of many delays: a few figures."""

import math
from collections.abc import Iterable, Sequence


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest of ``ordered`` (ascending, not empty) that ``percent`` of them do not exceed."""
    rank = max(1, math.ceil(len(ordered) * percent / 100))
    return ordered[rank - 1]


def summary_ms(delays: Iterable[float]) -> dict[str, float]:
    """Return count, median, 99th percentile and maximum in milliseconds of ``delays`` in seconds."""
    ordered = sorted(delays)
    if not ordered:
        return {"count": 0}
    figures = {
        "p50": percentile(ordered, 50),
        "p99": percentile(ordered, 99),
        "max": ordered[-1],
    }
    return {"count": len(ordered)} | {
        f"{name}_ms": round(value * 1e3, 3) for name, value in figures.items()
    }


def ratio(value: float, of: float) -> float | None:
    """Return ``value`` / ``of`` for a report; None where there is nothing to divide by."""
    return round(value / of, 3) if of else None
