"""How much a search may take: nodes, which are the same in every run, and time, which is not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil


@dataclass
class Limit:
    """``nodes`` that are left, and time until ``clock()`` reaches ``deadline``, in seconds."""

    nodes: int
    clock: Callable[[], float]
    deadline: float

    @property
    def reached(self) -> bool:
        return self.nodes <= 0 or self.clock() >= self.deadline

    @contextmanager
    def share(self, part: float) -> Iterator["Limit"]:
        """Lend a limit of a part of what is left; the nodes that it used are taken off in the end."""
        now = self.clock()
        nodes = ceil(self.nodes * part)
        lent = Limit(nodes, self.clock, now + (self.deadline - now) * part)
        yield lent
        self.nodes -= nodes - lent.nodes
