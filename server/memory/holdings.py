"""What models hold of a budget, and the sum of that where some of them compute in turns.

Invariant: ``account`` adds up to ``sum_bytes``. Models that compute in turns share some kinds of memory; of
each such kind the largest holding counts, once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.execution.leases import SHARED_KINDS
from server.memory.request_needs import Need, smallest_budgets

#: The name for memory that models share; no pack can be called so.
SHARED = "(shared)"


@dataclass(frozen=True)
class Holding:
    """Bytes by kind, as ``Plan.memory``. ``in_turns``: other models use those of SHARED_KINDS, too."""

    memory: Mapping[str, int]
    in_turns: bool = False

    def part(self, shared: bool) -> dict[str, int]:
        """Return the part that is shared, or the part that is the model's own."""
        return {
            kind: n_bytes
            for kind, n_bytes in self.memory.items()
            if (self.in_turns and kind in SHARED_KINDS) is shared
        }


def account(holdings: Mapping[str, Holding]) -> dict[str, dict[str, int]]:
    """Return bytes by model and kind, each byte once: shared ones under SHARED."""
    parts = {name: holding.part(shared=False) for name, holding in holdings.items()}
    shared: dict[str, int] = {}
    for holding in holdings.values():
        for kind, n_bytes in holding.part(shared=True).items():
            shared[kind] = max(shared.get(kind, 0), n_bytes)
    return {**parts, SHARED: shared} if shared else parts


def sum_bytes(holdings: Mapping[str, Holding]) -> int:
    """Return what ``holdings`` take together."""
    return sum(sum(kinds.values()) for kinds in account(holdings).values())


# What packs need at least, so that a model that is loaded leaves room for the others.


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
