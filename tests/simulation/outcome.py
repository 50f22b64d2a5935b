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
    choices: tuple[dict[int, int], ...] = ()
    trace: str = ""

    def join(self, later: "Outcome") -> None:
        """Add what became of the next process of the same run."""
        self.broken = later.broken
        self.reached.update(later.reached)
        self.switches += later.switches
        self.seconds += later.seconds
        self.cpu_seconds += later.cpu_seconds
        self.choices += later.choices
        self.trace += later.trace
