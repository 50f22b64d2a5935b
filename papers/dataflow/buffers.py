"""What is found of a graph's buffers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Buffers:
    """Capacities in tokens, None: as many as there are; their memory ``size``, and what none is below.

    ``searched``: capacities that a search tried.
    """

    capacities: tuple[int | None, ...]
    size: int
    lower_bound: int
    searched: int = 0

    @property
    def proven(self) -> bool:
        """Whether no smaller ones let the graph run."""
        return self.size == self.lower_bound
