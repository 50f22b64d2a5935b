"""What models hold of a budget, and what that adds up to where some of them compute in turns.

Invariant: ``account`` adds up to ``sum_bytes``; what models in turns share counts once, as its largest.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.execution.leases import SHARED_KINDS

#: Under this name stands what models share; no pack can be called so.
SHARED = "(shared)"


@dataclass(frozen=True)
class Holding:
    """Bytes by kind, as ``Plan.memory``. ``in_turns``: others use those of SHARED_KINDS, too."""

    memory: Mapping[str, int]
    in_turns: bool = False

    def part(self, shared: bool) -> dict[str, int]:
        """Return what is shared, or what is the model's own."""
        return {
            kind: n_bytes
            for kind, n_bytes in self.memory.items()
            if (self.in_turns and kind in SHARED_KINDS) is shared
        }


def account(holdings: Mapping[str, Holding]) -> dict[str, dict[str, int]]:
    """Return bytes by model and kind, each byte once: what is shared stands under SHARED."""
    parts = {name: holding.part(shared=False) for name, holding in holdings.items()}
    shared: dict[str, int] = {}
    for holding in holdings.values():
        for kind, n_bytes in holding.part(shared=True).items():
            shared[kind] = max(shared.get(kind, 0), n_bytes)
    return {**parts, SHARED: shared} if shared else parts


def sum_bytes(holdings: Mapping[str, Holding]) -> int:
    """Return what ``holdings`` take together."""
    return sum(sum(kinds.values()) for kinds in account(holdings).values())
