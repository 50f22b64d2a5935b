"""What attacks cost others: delays and memory of phases with an attack beside phases without one.

Phases take turns, so that what else the machine does meets both. Only figures that many requests make are
judged: of fewer than a hundred delays the 99th percentile is the slowest one.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from benchmarks.load.percentiles import percentile, ratio
from benchmarks.mill.play import CALM, MillResult
from benchmarks.mill.verdict import Requirement, at_most

_MOST = 2.0
_ENOUGH = 100
_MEMORY = ("total", "anonymous")


def compared(played: MillResult) -> dict[str, Any]:
    """Return by attack how p99 of each errand and the peaks of memory relate to those of calm phases."""
    memory = _peaks(played)
    return {
        name: {
            "p99": _delay_ratios(played, name),
            "memory": {kind: ratio(peaks[kind], memory[CALM][kind]) for kind in _MEMORY},
            "bytes": {kind: (peaks[kind], memory[CALM][kind]) for kind in _MEMORY},
        }
        for name, peaks in memory.items()
        if name != CALM and CALM in memory
    }


def lines(compared: Mapping[str, Any]) -> list[Requirement]:
    """Return the line of each attack and figure: at most twice of calm."""
    found = []
    for name, figures in compared.items():
        found += [
            at_most(f"{kind}_beside_calm:{name}", max(figures[kind].values(), default=None), _MOST)
            for kind in ("p99", "memory")
        ]
    return found


def _delay_ratios(played: MillResult, name: str) -> dict[str, float]:
    calm, attacked = played.book.pages[CALM], played.book.pages[name]
    return {
        errand: round(_p99(attacked[errand].delays) / _p99(calm[errand].delays), 2)
        for errand in attacked
        if min(len(attacked[errand].delays), len(calm[errand].delays)) >= _ENOUGH
    }


def _p99(delays: list[float]) -> float:
    return percentile(sorted(delays), 99)


def _peaks(played: MillResult) -> dict[str, dict[str, int]]:
    """Return the largest of each kind of memory by phase."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(_MEMORY, 0))
    for phase in played.phases:
        peaks = found[phase["phase"]]
        for kind in _MEMORY:
            peaks[kind] = max(peaks[kind], phase["peak"].get(kind, 0))
    return dict(found)
