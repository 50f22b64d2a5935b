"""The loaded models as one value, and what a wish changes of them: pure, step by step within the budget.

A change closes an engine and opens it with another plan, so as few are made as are needed: before a new
model comes only so many as let it in, afterwards only what is worth it. What was planned by rules of thumb,
so that it serves at once, is changed for what a search has found. Steps are carried out by executor.py.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from pipeline.fitting.wanted import Fitted
from pipeline.planning.plan import PipelinePlan, Plan
from server.errors import FilesChangedError, RefusedError
from server.memory.budget import Budget
from server.memory.holdings import Holding
from server.memory.sharing import Activations, Sharer, Shares, admission, share_out
from server.settings.sizes import format_least

# Which models go when one comes that does not fit: the least recently used, and no more than it takes.
#
# Pure. Whether it fits is what ``share_out`` will say, so that none goes for nothing.


@dataclass(frozen=True)
class Resident:
    """A loaded model. ``used_at``: when a request used it last, in seconds of one clock.

    ``is_used``: requests use it now; it goes only where idle ones do not suffice, and when these have been
    answered. ``may_go``: it need not stay.
    """

    sharer: Sharer
    used_at: float
    is_used: bool = False
    may_go: bool = True


def victims(
    newcomer: Sharer,
    loaded: Sequence[Resident],
    absent: Sequence[Sharer],
    budget: Budget,
    activations: Activations,
) -> list[str] | None:
    """Return the names of the models that go, in that order, so that ``newcomer`` fits beside the others.

    ``absent``: models that are served and not loaded; ``budget``: what is there when no model is loaded.
    None: it would not fit if all went that may. With room for it none goes.
    """

    def fits(gone: Sequence[Resident]) -> bool:
        staying = [each.sharer for each in loaded if each not in gone]
        waiting = [*absent, *(each.sharer for each in gone)]
        together = [*staying, newcomer, *waiting]
        _, admitted = admission(together, budget, activations, len(staying))
        return set(range(len(staying) + 1)).issubset(admitted)

    candidates = [each for each in loaded if each.may_go]
    candidates.sort(key=lambda each: (each.is_used, each.used_at))
    gone = next((n for n in range(len(candidates) + 1) if fits(candidates[:n])), None)
    return None if gone is None else [each.sharer.name for each in _needed(candidates[:gone], fits)]


def _needed(gone: Sequence[Resident], fits: Callable[[Sequence[Resident]], bool]) -> list[Resident]:
    """Return those of ``gone`` without which it does not fit; the one used last is spared first."""
    needed = list(gone)
    for each in reversed(gone):
        fewer = [other for other in needed if other is not each]
        if fits(fewer):
            needed = fewer
    return needed


# The fleet, and what a wish changes of it.

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


class Change(NamedTuple):
    """A step: the model ``name`` is opened again as ``place``."""

    name: str
    place: Place


@dataclass(frozen=True)
class Member(Resident):
    """A loaded model and its ``place``. ``stays``: it cannot be opened again, its files are others by now.

    ``serves``: else it has left service, and only holds its memory; then it stays, too.
    """

    place: Place = field(kw_only=True)
    stays: bool = field(default=False, kw_only=True)
    serves: bool = field(default=True, kw_only=True)

    def rigid(self) -> Self:
        """Return it as it shares with others: one that stays needs what it has."""
        if not self.stays:
            return self
        fitted = self.place.fitted
        kept = replace(
            self.sharer,
            least=fitted.plan.memory,
            within=lambda _: fitted,
            at_once=lambda _: fitted,
            alone=not self.place.in_turns,
        )
        return replace(self, sharer=kept)


@dataclass(frozen=True)
class Fleet:
    """The loaded models by name; ``budget``: what is held now, also by others."""

    budget: Budget
    members: Mapping[str, Member]
    activations: Activations

    def without(self, name: str) -> "Fleet":
        """Return it when ``name`` has gone."""
        others = {each: member for each, member in self.members.items() if each != name}
        return replace(self, budget=self.budget.without([name]), members=others)

    @property
    def places(self) -> dict[str, Place]:
        """What those that serve are planned as."""
        return {name: each.place for name, each in self._serving.items()}

    @property
    def _serving(self) -> dict[str, Member]:
        return {name: each.rigid() for name, each in self.members.items() if each.serves}

    def coming(
        self, key: str, newcomer: Sharer, absent: Iterable[Sharer]
    ) -> tuple[Place, list[Change]]:
        """Return what ``newcomer`` shall be at once, and which of the others change before.

        ``key``: under which it will hold memory; ``absent``: models that are served and not loaded: they
        keep their least, behind it.

        Raises:
            RefusedError: it does not fit. Otherwise why it cannot be planned.
        """
        shares = self._shared([newcomer, *absent], [key], at_once=True)
        own = shares.outcomes[len(self.places)]
        if not isinstance(own, Fitted):
            raise own or RefusedError(f"model {newcomer.name!r} is not planned")
        place, room = Place.of(own, shares.in_turns), self.budget.without([key])
        return place, making_room(place, self.places, self._planned(shares), room)

    def limited(self, name: str, most_bytes: int | None) -> list[Change]:
        """Return what changes so that ``name`` keeps its limit, ``most_bytes``, itself last.

        Raises:
            FilesChangedError: it stays. RefusedError: it needs more at least.
        """
        if self.members[name].stays:
            raise FilesChangedError(name)
        shares = self._shared([], [], at_once=True)
        planned, others = self._planned(shares), self.without(name)
        n_bytes = planned[name].fitted.plan.total_bytes
        if most_bytes is not None and n_bytes > most_bytes:
            raise RefusedError(
                f"model {name!r} needs {format_least(n_bytes)} ({n_bytes} bytes) at least, more than "
                f"{most_bytes} bytes"
            )
        changes = making_room(planned[name], others.places, planned, others.budget)
        if not planned[name].is_like(self.places[name]):
            changes.append(Change(name, planned[name]))
        return changes

    def best(self) -> tuple[list[Change], dict[str, Place]]:
        """Return what changes so that all use what is free, and what a search has found of each."""
        planned = self._planned(self._shared([], [], at_once=False))
        return growing(self.places, planned, self.budget), planned

    def going(self, newcomer: Sharer, absent: Iterable[Sharer]) -> list[str] | None:
        """Return which go so that ``newcomer`` fits, None where it does not; ``absent``: as ``coming``."""
        room = self.budget.without([*self.members])
        loaded = [each.rigid() for each in self.members.values()]
        return victims(newcomer, loaded, list(absent), room, self.activations)

    def _shared(self, others: Iterable[Sharer], gone: list[str], *, at_once: bool) -> Shares:
        """Plan those that serve and ``others`` behind them.

        ``at_once``: what would take long to find is planned by rules of thumb.
        """
        serving = self._serving
        sharers = [*(each.sharer for each in serving.values()), *others]
        if at_once:
            sharers = [each.hurried() for each in sharers]
        room = self.budget.without([*serving, *gone])
        return share_out(sharers, room, self.activations, len(serving))

    def _planned(self, shares: Shares) -> dict[str, Place]:
        """Return what those that serve shall be; one that is not planned, or stays, is as it is."""
        return {
            name: Place.of(outcome, shares.in_turns)
            if isinstance(outcome, Fitted) and not self.members[name].stays
            else place
            for (name, place), outcome in zip(self.places.items(), shares.outcomes, strict=False)
        }


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
            changes.append(Change(name, target))
    return changes


def growing(loaded: Places, planned: Places, budget: Budget) -> list[Change]:
    """Return what changes, in order, so that ``loaded`` use what is free; each step fits in ``budget``."""
    trial = budget.without(())
    changes: list[Change] = []
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
        changes.append(Change(name, target))
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
