"""How much of the processors others took meanwhile: what is measured on a busy machine takes too long."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_STAT = Path("/proc/stat")
# Of the first line: user, nice, system, (idle, waiting for disks), interrupts, soft ones, stolen by others
# of the same host. Guests are in user.
_BUSY = (0, 1, 2, 5, 6, 7)


@dataclass(frozen=True)
class ProcessorTimes:
    """Seconds since some beginning, of all processors together: ``busy``, and by this process ``own``."""

    at: float
    busy: float
    own: float

    @classmethod
    def now(cls) -> Self | None:
        """Return the times until now; None where the system does not tell."""
        own = os.times()
        try:
            busy = busy_seconds(_STAT.read_text("ascii"), os.sysconf("SC_CLK_TCK"))
        except (OSError, ValueError):
            return None
        return cls(time.monotonic(), busy, own.user + own.system)


def busy_seconds(stat: str, per_second: int) -> float:
    """Return the seconds that ``stat``, the text of /proc/stat, counts in ticks of all processors.

    Raises:
        ValueError: it does not say it.
    """
    word, *ticks = stat.partition("\n")[0].split()
    if word != "cpu" or len(ticks) <= max(_BUSY):
        raise ValueError(f"{_STAT}: no times of processors")
    return sum(int(ticks[index]) for index in _BUSY) / per_second


def others_share(
    before: ProcessorTimes | None, after: ProcessorTimes | None, processors: int
) -> float:
    """Return the part of ``processors`` that others took in between; 0 where nobody knows."""
    if before is None or after is None or after.at <= before.at:
        return 0.0
    taken = (after.busy - before.busy) - (after.own - before.own)
    return round(min(max(taken / (processors * (after.at - before.at)), 0.0), 1.0), 2)
