"""How busy the machine was with others while something was measured."""

import os
from collections.abc import Sequence
from pathlib import Path


def busy_seconds() -> float:
    """Return the seconds that cores were busy since the machine's start, or kept from it by its host."""
    user, nice, system, _, _, irq, softirq, steal = map(int, _first_line(Path("/proc/stat"))[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def seconds_of(processes: Sequence[int]) -> float:
    """Return the seconds of the processor that ``processes`` took."""
    times = [_first_line(Path(f"/proc/{process}/stat"))[13:15] for process in processes]
    return sum(int(user) + int(system) for user, system in times) / os.sysconf("SC_CLK_TCK")


def _first_line(path: Path) -> list[str]:
    return path.read_text().split("\n", 1)[0].split()
