"""What became of a run."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Outcome:
    """``broken``: what did not hold, "" if all did; ``reached``: how often what happened.

    ``switches``: points at which another thread could go on. ``seconds``: of the simulation. ``choices``:
    of threads, other than the usual ones, by number. ``trace``: a hash of all switches in their order.
    """

    broken: str = ""
    reached: Counter[str] = field(default_factory=Counter)
    switches: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    choices: dict[int, int] = field(default_factory=dict)
    trace: str = ""
