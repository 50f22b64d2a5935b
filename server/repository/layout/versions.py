"""Which versions of a model are served at once: the newest few, some by number, or all. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Latest:
    """The ``count`` highest numbers."""

    count: int = 1

    def wanted(self, there: Sequence[int]) -> list[int]:
        """Return those of ``there`` that are served, lowest first."""
        return sorted(there)[-self.count :]


#: As usual.
LATEST = Latest()


@dataclass(frozen=True)
class Specific:
    """These numbers, as far as they are there."""

    numbers: frozenset[int]

    def wanted(self, there: Sequence[int]) -> list[int]:
        return sorted(self.numbers.intersection(there))


@dataclass(frozen=True)
class Every:
    """All that are there."""

    def wanted(self, there: Sequence[int]) -> list[int]:
        return sorted(there)


Policy = Latest | Specific | Every


def serves_several(policy: Policy) -> bool:
    """Return whether a model of ``policy`` may ever have more than one version at once."""
    return policy != LATEST and not (isinstance(policy, Specific) and len(policy.numbers) == 1)
