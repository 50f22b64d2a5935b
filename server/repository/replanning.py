"""Which loaded models change when one comes or goes, in which order: pure, step by step within the budget.

A change closes an engine and opens it with another plan, so as few are made as are needed: before a new
model comes only so many as let it in, afterwards only what is worth it. What was planned by rules of thumb,
so that it serves at once, is changed for what a search has found.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from pipeline.fitting.wanted import Fitted
from pipeline.planning.partitions.plan import PipelinePlan
from pipeline.planning.plan import Plan
from server.errors import RefusedError
from server.memory.budget import Budget
from server.memory.holdings import Holding
from server.settings.sizes import format_least

#: A larger plan is worth opening a model again when it is larger by this part.
_WORTH = 16


@dataclass(frozen=True)
class Place:
    """What a model is planned as. ``in_turns``: its activations lie where those of others do."""

    fitted: Fitted
    in_turns: bool

    @classmethod
    def of(cls, fitted: Fitted, in_turns: bool) -> Self:
        """Return the place of a model where those that can take turns do (``in_turns``)."""
        return cls(fitted, in_turns and not isinstance(fitted.plan, PipelinePlan))

    @property
    def holding(self) -> Holding:
        return Holding(self.fitted.plan.memory, self.in_turns)

    def is_like(self, other: "Place") -> bool:
        """Return whether nothing changes from one to the other."""
        same = _chosen(self.fitted.plan) == _chosen(other.fitted.plan)
        return same and self.in_turns == other.in_turns


def _chosen(plan: Plan | PipelinePlan) -> tuple[object, ...]:
    """Return what makes a plan of a model what it is: the rest follows, and is not always comparable."""
    if isinstance(plan, PipelinePlan):
        return plan.cuts, *map(_chosen, plan.partitions)
    return plan.architecture, plan.choice


#: Models by name.
Places = Mapping[str, Place]
#: A model, and what it is opened again as.
Change = tuple[str, Place]


def making_room(newcomer: Place, loaded: Places, planned: Places, budget: Budget) -> list[Change]:
    """Return what changes, in order, so that ``newcomer`` fits in ``budget`` beside ``loaded``.

    ``planned``: what the loaded ones shall be when it has come. At first none grows: one that shall, in
    turns with others, keeps its plan there. Where that is not enough, all become what was planned: of plans
    in turns the smaller one may leave less room, since it may have more of what is not shared. Each step
    leaves the budget whole; one that does not fit yet is tried once more at the end.
    """
    trial, now = budget.without(()), dict(loaded)
    changes: list[Change] = []
    order = sorted(loaded, key=lambda name: _added(name, planned[name], loaded, budget))
    for grows, name in itertools.product((False, True), order):
        if _fits(newcomer, trial):
            break
        target = planned[name]
        if not grows and _added(name, target, now, trial) > 0:
            target = Place(now[name].fitted, target.in_turns)
        if not target.is_like(now[name]) and _added(name, target, now, trial) <= trial.free_bytes:
            _change(trial, name, target)
            now[name] = target
            changes.append((name, target))
    return changes


def check_within(name: str, place: Place, most_bytes: int | None) -> None:
    """Check that ``place`` keeps a limit.

    Raises:
        RefusedError: it is the least that there is, and more.
    """
    n_bytes = place.fitted.plan.total_bytes
    if most_bytes is not None and n_bytes > most_bytes:
        raise RefusedError(
            f"model {name!r} needs {format_least(n_bytes)} ({n_bytes} bytes) at least, more than "
            f"{most_bytes} bytes"
        )


def growing(loaded: Places, planned: Places, budget: Budget) -> dict[str, Place]:
    """Return what changes, in order, so that ``loaded`` use what is free; each step fits in ``budget``."""
    trial = budget.without(())
    changes: dict[str, Place] = {}
    for name in sorted(loaded, key=lambda name: _added(name, planned[name], loaded, budget)):
        now, target = loaded[name], planned[name]
        gain = target.fitted.plan.total_bytes - now.fitted.plan.total_bytes
        is_searched = now.fitted.by_thumb and not target.fitted.by_thumb
        is_larger = gain * _WORTH >= now.fitted.plan.total_bytes
        is_worth = is_searched or is_larger or now.in_turns != target.in_turns
        if not is_worth or target.is_like(now):
            continue
        try:
            _change(trial, name, target)
        except RefusedError:
            continue
        changes[name] = target
    return changes


def _added(name: str, target: Place, loaded: Places, budget: Budget) -> int:
    """Return by how many bytes more are held when ``name`` becomes ``target``."""
    others = budget.without([name])
    after, before = others.added(target.holding), others.added(loaded[name].holding)
    return sum(after.values()) - sum(before.values())


def _fits(newcomer: Place, budget: Budget) -> bool:
    return sum(budget.added(newcomer.holding).values()) <= budget.free_bytes


def _change(budget: Budget, name: str, target: Place) -> None:
    budget.change(name, target.fitted.plan.memory, target.in_turns)
