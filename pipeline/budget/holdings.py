"""What models hold of a budget, and the sum of that where some of them compute in turns.

Invariant: ``account`` adds up to ``n_bytes``. Models that compute in turns share some kinds of memory; of
each such kind the largest holding counts, once.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from pipeline.budget.request_needs import Need, smallest_budgets
from pipeline.execution.leases import SHARED_KINDS

#: The name for memory that models share; no pack can be called so.
SHARED = "(shared)"


@dataclass(frozen=True)
class Holding:
    """Bytes by kind, as ``Plan.memory``. ``in_turns``: other models use those of SHARED_KINDS, too."""

    memory: Mapping[str, int]
    in_turns: bool = False

    @cached_property
    def private(self) -> Mapping[str, int]:
        """The part that is the model's own."""
        return self._kinds(shared=False)

    @cached_property
    def shared(self) -> Mapping[str, int]:
        """The part that other models use, too."""
        return self._kinds(shared=True)

    def _kinds(self, *, shared: bool) -> Mapping[str, int]:
        if not self.in_turns:
            return {} if shared else self.memory
        return {
            kind: n_bytes
            for kind, n_bytes in self.memory.items()
            if (kind in SHARED_KINDS) is shared
        }

    @cached_property
    def private_bytes(self) -> int:
        return sum(self.private.values())


class Allocations(Mapping[str, Holding]):
    """Allocations by the names of models; never changed: each change is another one.

    Their sum is carried on from one to the next: a decision over many models makes many of them.
    """

    def __init__(self, by_name: Mapping[str, Holding] = MappingProxyType({})) -> None:
        self._by_name = dict(by_name)
        self._private_bytes = sum(one.private_bytes for one in self._by_name.values())
        #: Of each kind that models share the largest holding.
        self.shared: Mapping[str, int] = _largest(self._by_name.values())

    def __getitem__(self, name: str) -> Holding:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def n_bytes(self) -> int:
        """What they take together."""
        return self._private_bytes + sum(self.shared.values())

    def added(self, holding: Holding) -> dict[str, int]:
        """Return the bytes by kind that one more adds: of shared kinds what exceeds the largest."""
        return {**holding.private} | {
            kind: max(n_bytes - self.shared.get(kind, 0), 0)
            for kind, n_bytes in holding.shared.items()
        }

    def having(self, name: str, entry: Holding) -> "Allocations":
        """Return these, and ``entry`` under ``name`` as the last one, in place of what it held."""
        others = self.without([name])
        others._by_name[name] = entry
        others._private_bytes += entry.private_bytes
        if entry.shared:
            others.shared = _larger(others.shared, entry.shared)
        return others

    def without(self, names: Collection[str]) -> "Allocations":
        """Return these without ``names``, which need not be there."""
        others = Allocations()
        others._by_name = self._by_name.copy()
        others._private_bytes, others.shared = self._private_bytes, self.shared
        gone = [others._by_name.pop(name) for name in names if name in self._by_name]
        others._private_bytes -= sum(entry.private_bytes for entry in gone)
        if any(
            n_bytes == self.shared[kind] for entry in gone for kind, n_bytes in entry.shared.items()
        ):
            others.shared = _largest(others._by_name.values())
        return others

    def renamed(self, name: str, other: str) -> "Allocations":
        """Return these, what stands under ``name`` under ``other``."""
        assert other not in self._by_name
        return Allocations(
            {other if old == name else old: entry for old, entry in self._by_name.items()}
        )

    def account(self) -> dict[str, dict[str, int]]:
        """Return bytes by model and kind, each byte once: shared ones under SHARED."""
        parts = {name: dict(holding.private) for name, holding in self._by_name.items()}
        return {**parts, SHARED: dict(self.shared)} if self.shared else parts


def _largest(holdings: Iterable[Holding]) -> Mapping[str, int]:
    shared: Mapping[str, int] = {}
    for entry in holdings:
        if entry.shared:
            shared = _larger(shared, entry.shared)
    return shared


def _larger(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return the larger number of each kind."""
    return {**one, **{kind: max(one.get(kind, 0), n_bytes) for kind, n_bytes in other.items()}}


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
    return Allocations(
        {
            str(number): Holding(each.memory, in_turns and not each.alone)
            for number, each in enumerate(minima)
        }
    ).n_bytes


def needed_by(minima: Sequence[Minimum], in_turns: bool) -> int:
    """Return the smallest budget in which all answer all requests, at once or ``in_turns``."""
    needs = [each.need for each in minima]
    return smallest_budgets(least_together(minima, in_turns), needs).full_bytes
