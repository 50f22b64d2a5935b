"""The loaded models as one value, the target of a change, and the next step toward it; pure.

A step evicts a model, or closes its engine and opens it with another plan, so as few as possible are taken:
before a new model comes only those that it needs, afterwards only those that gain enough. A plan by rules
of thumb, with which a model serves at once, is later changed for the one that a search has found.
executor.py takes the steps: one, then it looks again. So what failed needs no list of what to undo: the
target is then what was.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from models.sizes import format_least
from pipeline.budget.budget import Budget
from pipeline.budget.errors import RefusedError
from pipeline.budget.holdings import Holding
from pipeline.budget.sharing import (
    Activations,
    Sharer,
    Shares,
    admission,
    min_used_bytes,
    share_out,
)
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


class Evict(NamedTuple):
    """A step: the model ``name`` is closed, since another one needs its memory."""

    name: str


class Change(NamedTuple):
    """A step: the model ``name`` is opened, or opened again, with the plan ``place``."""

    name: str
    place: Place


@dataclass(frozen=True)
class FleetTarget:
    """The plans that models shall have. ``first``: for which others give way, as far as it needs.

    Without that, all change as far as there is room. ``gone``: models that shall hold nothing, in the order
    in which they go.
    """

    plans: Places = field(default_factory=dict)
    first: Change | None = None
    gone: Sequence[str] = ()

    def without(self, name: str) -> "FleetTarget":
        """Return the target where ``name`` stays as it is."""
        plans = {each: place for each, place in self.plans.items() if each != name}
        return replace(self, plans=plans, gone=[each for each in self.gone if each != name])


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
        self, key: str, newcomer: Sharer, absent: Iterable[Sharer], claims: Sequence[Sharer] = ()
    ) -> FleetTarget:
        """Return the plans with which ``newcomer``, the first, fits together with the others.

        ``key``: the name under which it will hold memory; ``absent``: models that are served and not
        loaded: their least is kept free, after that of ``newcomer``. ``claims``: of models that are closed,
        and whose least is kept free before it.

        Raises:
            RefusedError: it does not fit. Otherwise why it cannot be planned.
        """
        shares = self._shared([*claims, newcomer, *absent], [key], len(claims), at_once=True)
        own = shares.outcomes[len(self.places) + len(claims)]
        if not isinstance(own, PlanResult):
            raise own or RefusedError(f"model {newcomer.name!r} is not planned")
        return FleetTarget(self._planned(shares), Change(key, Place.of(own, shares.in_turns)))

    def limited(self, name: str, most_bytes: int | None) -> FleetTarget:
        """Return the plans with which ``name``, the first, keeps its limit, ``most_bytes``.

        Raises:
            FilesChangedError: it cannot be opened again. RefusedError: its least plan is larger.
        """
        if self.members[name].stays:
            raise FilesChangedError(name)
        shares = self._shared([], [], at_once=True)
        planned = self._planned(shares)
        n_bytes = planned[name].fitted.plan.total_bytes
        if most_bytes is not None and n_bytes > most_bytes:
            raise RefusedError(
                f"model {name!r} needs {format_least(n_bytes)} ({n_bytes} bytes) at least, more than "
                f"{most_bytes} bytes"
            )
        return FleetTarget(planned, Change(name, planned[name]))

    def best(self) -> FleetTarget:
        """Return the plans with which the models use all free memory."""
        return FleetTarget(self._planned(self._shared([], [], at_once=False)))

    def evictions(self, newcomer: Sharer, absent: Iterable[Sharer]) -> FleetTarget | None:
        """Return the target where those are gone without which ``newcomer`` fits; None: it does not.

        See ``victims``.
        """
        room = self.budget.without([*self.members])
        loaded = [each.rigid() for each in self.members.values()]
        gone = victims(newcomer, loaded, list(absent), room, self.activations)
        return None if gone is None else FleetTarget(gone=gone)

    def fewer(self, *, is_used: bool = True) -> FleetTarget:
        """Return the target where so many models are gone that the ceiling is met, longest unused first.

        Of those that may go; ``is_used``: also ones that requests use, after idle ones.
        """
        budget, gone = self.budget, list[str]()
        going = [member for member in self.members.values() if member.may_go]
        for member in sorted(going, key=lambda member: (member.is_used, member.used_at)):
            if budget.free_bytes >= 0 or (member.is_used and not is_used):
                break
            gone.append(member.sharer.name)
            budget = budget.without(gone)
        return FleetTarget(gone=gone)

    def smaller(self) -> FleetTarget:
        """Return smaller plans with which the models meet the ceiling, or the least where they cannot.

        No model has a larger plan than now, and none that would take long to find.
        """
        budget = self.budget.without(())
        budget.ceiling_bytes = max(budget.ceiling_bytes, self._min_bytes())
        planned = replace(self, budget=budget)
        plans = planned._planned(planned._shared([], [], at_once=True))
        now = self.places
        return FleetTarget({name: _smaller(plan, now[name]) for name, plan in plans.items()})

    def _min_bytes(self) -> int:
        """Return what is used at least, where all models that serve have their least."""
        serving = self._serving
        sharers = [member.sharer for member in serving.values()]
        return min_used_bytes(sharers, self.budget.without([*serving]), self.activations)

    def _shared(
        self, others: Iterable[Sharer], gone: list[str], claims: int = 0, *, at_once: bool
    ) -> Shares:
        """Plan the models that serve, and after them ``others``, with the memory of ``gone`` free.

        The first ``claims`` of the others are not given up for those after them. ``at_once``: a plan that
        would take long to find is made by rules of thumb.
        """
        serving = self._serving
        sharers = [*(each.sharer for each in serving.values()), *others]
        if at_once:
            sharers = [each.hurried() for each in sharers]
        room = self.budget.without([*serving, *gone])
        return share_out(sharers, room, self.activations, len(serving) + claims)

    def _planned(self, shares: Shares) -> dict[str, Place]:
        """Return the new plans of the models that serve; one that gets none, or stays, keeps its own."""
        return {
            name: Place.of(outcome, shares.in_turns)
            if isinstance(outcome, PlanResult) and not self.members[name].stays
            else place
            for (name, place), outcome in zip(self.places.items(), shares.outcomes, strict=False)
        }


def _smaller(planned: Place, now: Place) -> Place:
    """Return ``planned``, or where that is larger the plan of ``now``, in turns as ``planned`` is."""
    is_larger = planned.fitted.plan.total_bytes > now.fitted.plan.total_bytes
    return Place(now.fitted, planned.in_turns) if is_larger else planned


def gaining(target: FleetTarget, now: Places) -> FleetTarget:
    """Return ``target`` of models with the plans ``now``, less what gains too little.

    Models that have left service since the target was decided have no plan now, and gain nothing.
    """
    plans = {
        name: place
        for name, place in target.plans.items()
        if name in now and _gains(now[name], place)
    }
    return replace(target, plans=plans)


def _gains(now: Place, target: Place) -> bool:
    gain = target.fitted.plan.total_bytes - now.fitted.plan.total_bytes
    is_searched = now.fitted.heuristic and not target.fitted.heuristic
    is_larger = gain * _WORTH >= now.fitted.plan.total_bytes
    return is_searched or is_larger or now.in_turns != target.in_turns


def step(target: FleetTarget, now: Places, budget: Budget) -> Evict | Change | None:
    """Return the next step of models with the plans ``now``; None: none is needed, or none fits.

    What shall be gone goes first, since all else needs its memory.

    ``budget``: with what they hold now, in which each step fits. Where no step makes room for the first, it
    is the step all the same: the budget refuses it, and says why.

    For the first, no model grows as long as another can change: one with a larger plan keeps its own, and
    at most changes to computing in turns. Then all planned changes are made: in turns, even a smaller plan
    may leave less room, since it may have more memory of kinds that are not shared.
    """
    if target.gone:
        return Evict(target.gone[0])
    first = target.first
    if first is None:
        return _next(target.plans, now, budget, grows=True)
    current = now.get(first.name)
    if current is not None and first.place.is_like(current):
        return None
    if _added(first, now, budget) <= budget.free_bytes:
        return first
    others = {
        name: place for name, place in target.without(first.name).plans.items() if name in now
    }
    return (
        _next(others, now, budget, grows=False) or _next(others, now, budget, grows=True) or first
    )


def _next(targets: Places, now: Places, budget: Budget, *, grows: bool) -> Change | None:
    """Return the change to one of ``targets`` that fits and adds fewest bytes, none without ``grows``."""
    cheapest: tuple[int, Change] | None = None
    for name, place in targets.items():
        change, current = Change(name, place), now.get(name)
        added = _added(change, now, budget)
        if current is not None and not grows and added > 0:
            change = Change(name, Place(current.fitted, place.in_turns))
            added = _added(change, now, budget)
        if current is not None and change.place.is_like(current):
            continue
        # Above the ceiling, what gives memory back is a step, though others have to follow.
        if added <= max(budget.free_bytes, 0) and (cheapest is None or added < cheapest[0]):
            cheapest = added, change
    return cheapest and cheapest[1]


def _added(change: Change, now: Places, budget: Budget) -> int:
    """Return how many more bytes are held after ``change``."""
    others, current = budget.without([change.name]), now.get(change.name)
    after = sum(others.added(change.place.holding).values())
    return after - (0 if current is None else sum(others.added(current.holding).values()))
