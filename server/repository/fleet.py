"""The loaded models as one value, and the changes that a wish needs, each step within the budget; pure.

A change closes an engine and opens it with another plan, so as few as possible are made: before a new model
comes only those that it needs, afterwards only those that gain enough. A plan by rules of thumb, with which
a model serves at once, is later changed for the one that a search has found. executor.py carries them out.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from models.sizes import format_least
from pipeline.budget.budget import Budget
from pipeline.budget.errors import RefusedError
from pipeline.budget.holdings import Holding
from pipeline.budget.sharing import Activations, Sharer, Shares, admission, share_out
from pipeline.fitting.wanted import PlanResult
from pipeline.planning.plan import AnyPlan, PartitionedPlan
from server.errors import FilesChangedError

#: A model is opened again for a larger plan only if that is larger by one part in so many.
_WORTH = 16


@dataclass(frozen=True)
class Place:
    """The plan of a model. ``in_turns``: its activations use the arena that other models use, too."""

    fitted: PlanResult
    in_turns: bool

    @classmethod
    def of(cls, fitted: PlanResult, in_turns: bool) -> Self:
        """Return the place of a model in a set that computes ``in_turns``, which pipelines cannot."""
        return cls(fitted, in_turns and not isinstance(fitted.plan, PartitionedPlan))

    @property
    def holding(self) -> Holding:
        return Holding(self.fitted.plan.memory, self.in_turns)

    def is_like(self, other: "Place") -> bool:
        """Return whether both are the same plan."""
        same = _chosen(self.fitted.plan) == _chosen(other.fitted.plan)
        return same and self.in_turns == other.in_turns


def _chosen(plan: AnyPlan) -> tuple[object, ...]:
    """Return the choices that a plan is made of: the rest follows, and cannot always be compared."""
    if isinstance(plan, PartitionedPlan):
        return plan.cuts, *map(_chosen, plan.partitions)
    return plan.architecture, plan.choice


#: Plans by the names of models.
Places = Mapping[str, Place]


class Change(NamedTuple):
    """A step: the model ``name`` is opened again with the plan ``place``."""

    name: str
    place: Place


@dataclass(frozen=True)
class Member:
    """A loaded model and its ``place``. ``used_at``: when a request used it last, in seconds of one clock.

    ``is_used``: requests use it now; it is evicted only where idle ones do not suffice, and after these
    requests. ``may_go``: it may be evicted. ``stays``: it cannot be opened again, since its files have
    changed. ``serves``: else it has left service, and only holds its memory; then it stays, too.
    """

    sharer: Sharer
    used_at: float
    place: Place
    is_used: bool = False
    may_go: bool = True
    stays: bool = False
    serves: bool = True

    def rigid(self) -> Self:
        """Return the same model for planning; one that stays needs exactly what it has."""
        if not self.stays:
            return self
        fitted = self.place.fitted
        rigid_sharer = replace(
            self.sharer,
            least=fitted.plan.memory,
            within=lambda _: fitted,
            at_once=lambda _: fitted,
            alone=not self.place.in_turns,
        )
        return replace(self, sharer=rigid_sharer)


# Which models are evicted when a new one does not fit: the least recently used, and no more than needed.
#
# Whether it fits is decided as ``share_out`` does later, so that none is evicted in vain.


def victims(
    newcomer: Sharer,
    loaded: Sequence[Member],
    absent: Sequence[Sharer],
    budget: Budget,
    activations: Activations,
) -> list[str] | None:
    """Return the names of the models to evict, in that order, so that ``newcomer`` fits beside the others.

    ``absent``: models that are served and not loaded; ``budget``: with no model loaded. Empty: it fits
    already. None: it does not fit even without all that may be evicted.
    """

    def fits(gone: Sequence[Member]) -> bool:
        staying = [each.sharer for each in loaded if each not in gone]
        waiting = [*absent, *(each.sharer for each in gone)]
        together = [*staying, newcomer, *waiting]
        _, admitted = admission(together, budget, activations, len(staying))
        return set(range(len(staying) + 1)).issubset(admitted)

    candidates = [each for each in loaded if each.may_go]
    candidates.sort(key=lambda each: (each.is_used, each.used_at))
    gone = next((n for n in range(len(candidates) + 1) if fits(candidates[:n])), None)
    return None if gone is None else [each.sharer.name for each in _needed(candidates[:gone], fits)]


def _needed(gone: Sequence[Member], fits: Callable[[Sequence[Member]], bool]) -> list[Member]:
    """Return those of ``gone`` that must go for it to fit; the one used last is spared first."""
    needed = list(gone)
    for each in reversed(gone):
        fewer = [other for other in needed if other is not each]
        if fits(fewer):
            needed = fewer
    return needed


# The fleet, and the changes that a wish needs.


@dataclass(frozen=True)
class Fleet:
    """The loaded models by name; ``budget``: as it is now, with other holdings."""

    budget: Budget
    members: Mapping[str, Member]
    activations: Activations

    def without(self, name: str) -> "Fleet":
        """Return the fleet without ``name``."""
        others = {each: member for each, member in self.members.items() if each != name}
        return replace(self, budget=self.budget.without([name]), members=others)

    @property
    def places(self) -> dict[str, Place]:
        """The plans of the models that serve."""
        return {name: each.place for name, each in self._serving.items()}

    @property
    def _serving(self) -> dict[str, Member]:
        return {name: each.rigid() for name, each in self.members.items() if each.serves}

    def coming(
        self, key: str, newcomer: Sharer, absent: Iterable[Sharer]
    ) -> tuple[Place, list[Change]]:
        """Return the first plan of ``newcomer``, and the changes of others that it needs before.

        ``key``: the name under which it will hold memory; ``absent``: models that are served and not
        loaded: their least is kept free, after that of ``newcomer``.

        Raises:
            RefusedError: it does not fit. Otherwise why it cannot be planned.
        """
        shares = self._shared([newcomer, *absent], [key], at_once=True)
        own = shares.outcomes[len(self.places)]
        if not isinstance(own, PlanResult):
            raise own or RefusedError(f"model {newcomer.name!r} is not planned")
        place, room = Place.of(own, shares.in_turns), self.budget.without([key])
        return place, making_room(place, self.places, self._planned(shares), room)

    def limited(self, name: str, most_bytes: int | None) -> list[Change]:
        """Return the changes after which ``name`` keeps its limit, ``most_bytes``; its own comes last.

        Raises:
            FilesChangedError: it cannot be opened again. RefusedError: its least plan is larger.
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
        """Return the changes with which the models use all free memory, and the best plan of each."""
        planned = self._planned(self._shared([], [], at_once=False))
        return growing(self.places, planned, self.budget), planned

    def going(self, newcomer: Sharer, absent: Iterable[Sharer]) -> list[str] | None:
        """Return the models to evict so that ``newcomer`` fits; None: it does not. See ``victims``."""
        room = self.budget.without([*self.members])
        loaded = [each.rigid() for each in self.members.values()]
        return victims(newcomer, loaded, list(absent), room, self.activations)

    def _shared(self, others: Iterable[Sharer], gone: list[str], *, at_once: bool) -> Shares:
        """Plan the models that serve, and after them ``others``, with the memory of ``gone`` free.

        ``at_once``: a plan that would take long to find is made by rules of thumb.
        """
        serving = self._serving
        sharers = [*(each.sharer for each in serving.values()), *others]
        if at_once:
            sharers = [each.hurried() for each in sharers]
        room = self.budget.without([*serving, *gone])
        return share_out(sharers, room, self.activations, len(serving))

    def _planned(self, shares: Shares) -> dict[str, Place]:
        """Return the new plans of the models that serve; one that gets none, or stays, keeps its own."""
        return {
            name: Place.of(outcome, shares.in_turns)
            if isinstance(outcome, PlanResult) and not self.members[name].stays
            else place
            for (name, place), outcome in zip(self.places.items(), shares.outcomes, strict=False)
        }


def making_room(newcomer: Place, loaded: Places, planned: Places, budget: Budget) -> list[Change]:
    """Return the changes, in order, after which ``newcomer`` fits in ``budget`` beside ``loaded``.

    ``planned``: the plans of the loaded models beside the new one. In a first round no model grows: one
    with a larger plan keeps its own, and at most changes to computing in turns. A second round makes all
    planned changes: in turns, even a smaller plan may leave less room, since it may have more memory of
    kinds that are not shared. Each step fits in the budget; one that does not yet is tried in the second
    round.
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
    """Return the changes, in order, with which ``loaded`` use free memory; each step fits in ``budget``."""
    trial = budget.without(())
    changes: list[Change] = []
    for name in sorted(loaded, key=lambda name: _added(name, planned[name], loaded, budget)):
        now, target = loaded[name], planned[name]
        gain = target.fitted.plan.total_bytes - now.fitted.plan.total_bytes
        is_searched = now.fitted.heuristic and not target.fitted.heuristic
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
    """Return how many more bytes are held when ``name`` gets the plan ``target``."""
    others = budget.without([name])
    after, before = others.added(target.holding), others.added(loaded[name].holding)
    return sum(after.values()) - sum(before.values())


def _fits(newcomer: Place, budget: Budget) -> bool:
    return sum(budget.added(newcomer.holding).values()) <= budget.free_bytes


def _change(budget: Budget, name: str, target: Place) -> None:
    budget.change(name, target.fitted.plan.memory, target.in_turns)
