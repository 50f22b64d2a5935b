"""What the packs of a repository need at least, so that one that loads leaves the others their place."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from server.memory.holdings import Holding, sum_bytes
from server.memory.request_needs import Need, smallest_budgets


class Minimum(NamedTuple):
    """What a model needs at least: ``memory`` of its smallest plan, bytes by kind, and its requests.

    ``alone``: it takes no turns with others.
    """

    memory: Mapping[str, int]
    need: Need
    alone: bool = False

    def has_room(self, request_bytes: int) -> bool:
        """Return whether a request could be answered where all together hold so many bytes."""
        return self.need.tight_bytes <= request_bytes


def least_together(minima: Iterable[Minimum], in_turns: bool) -> int:
    """Return the bytes that models take together at least, at once or ``in_turns``."""
    return sum_bytes(
        {
            str(number): Holding(each.memory, in_turns and not each.alone)
            for number, each in enumerate(minima)
        }
    )


def needed_by(minima: Sequence[Minimum], in_turns: bool) -> int:
    """Return the smallest budget in which all answer all requests, at once or ``in_turns``."""
    needs = [each.need for each in minima]
    return smallest_budgets(least_together(minima, in_turns), needs).full_bytes
