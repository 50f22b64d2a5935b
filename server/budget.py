"""The one budget over all models: who holds how much of it, by kind.

Invariant: the sum of all reservations never exceeds the budget.
"""

from dataclasses import replace

from models.manifest import Manifest
from pipeline.architectures import Architecture
from pipeline.planning.plan import Plan, make_plan, useful_ring_bytes
from server.errors import RefusedError
from server.sizes import format_size


class Budget:
    """A ledger of ``total_bytes``."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self._held: dict[str, dict[str, int]] = {}

    @property
    def used_bytes(self) -> int:
        return sum(sum(kinds.values()) for kinds in self._held.values())

    @property
    def free_bytes(self) -> int:
        return self.total_bytes - self.used_bytes

    def reserve(self, name: str, plan: Plan) -> None:
        """Set aside what ``plan`` takes for model ``name``.

        Raises:
            RefusedError: it is not free; nothing was set aside.
        """
        if plan.total_bytes > self.free_bytes:
            raise refusal(name, plan.total_bytes, self)
        self._held[name] = dict(plan.memory)

    def release(self, name: str) -> None:
        """Give back what ``name`` holds, if anything."""
        self._held.pop(name, None)

    def held(self) -> dict[str, dict[str, int]]:
        """Return bytes by model and kind."""
        return {name: dict(kinds) for name, kinds in self._held.items()}


def refusal(name: str, needed_bytes: int, budget: Budget) -> RefusedError:
    """Return the error that says how much is missing."""
    return RefusedError(
        f"model {name!r} does not fit in the budget: needs {format_size(needed_bytes)} "
        f"({needed_bytes} bytes), free {format_size(budget.free_bytes)} "
        f"({budget.free_bytes} bytes) of {format_size(budget.total_bytes)}"
    )


def smallest_plan(manifest: Manifest, architecture: Architecture) -> Plan:
    """Return the plan with the least ring that can run the model."""
    return make_plan(manifest, architecture, manifest.largest_chunk_bytes)


def fit(
    manifest: Manifest, architecture: Architecture, name: str, free: Budget, share: int
) -> Plan:
    """Return the plan with the largest useful ring within ``share`` bytes, or the smallest plan.

    Raises:
        RefusedError: not even the smallest ring fits into what is free.
    """
    smallest = smallest_plan(manifest, architecture)
    if smallest.total_bytes > free.free_bytes:
        raise refusal(name, smallest.total_bytes, free)
    fixed = replace(smallest, ring_bytes=0).total_bytes
    room = min(share, free.free_bytes) - fixed
    ring = min(room, useful_ring_bytes(manifest, architecture))
    page = 4096
    return make_plan(manifest, architecture, max(ring // page * page, smallest.ring_bytes))
