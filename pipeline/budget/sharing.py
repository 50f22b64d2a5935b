"""Plans of all models that share one budget: the one decision of ``plan``, ``list`` and the service.

Pure. A model is admitted if its least plan fits beside those before it. The memory that is left when all
admitted models have their least is shared evenly, in their order; what one does not use goes to the next.
Among many, each part is at least half of an even one (``_in_steps``).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from models.errors import ModelError
from models.sizes import format_least
from pipeline.budget.budget import Budget, refusal
from pipeline.budget.errors import RefusedError
from pipeline.budget.holdings import Allocations, Holding
from pipeline.budget.search import HERE, Search, Searched
from pipeline.devices.base import Device
from pipeline.devices.device_memory import Space
from pipeline.execution.leases import SHARED_KINDS
from pipeline.fitting.fit import fit, fit_lanes, heuristic_plan
from pipeline.fitting.partitioned import fit_partitions
from pipeline.fitting.wanted import NOTHING, PlanResult, Wanted
from pipeline.planning.found_plans import FoundPlans
from pipeline.planning.plan import PlanError
from pipeline.profiles.profile import Profile, ShapedProfile
from pipeline.program.program import Program, letting_go
from pipeline.schedule.architectures import Architecture

#: Whether models have arenas of their own and compute at once, or share one and compute in turns. "auto":
#: in turns only where more of them fit so.
Activations = Literal["auto", "own", "shared"]

_WAYS: dict[Activations, tuple[bool, ...]] = {
    "auto": (False, True),
    "own": (False,),
    "shared": (True,),
}


#: More than any plan takes.
_ANY_BYTES = 1 << 50
#: Among so many models and more, parts of what is left are powers of two.
_MANY = 32


@dataclass(frozen=True)
class Sharer:
    """One model of a set that shares a budget. ``least``: bytes by kind of its smallest plan.

    ``alone``: it never shares memory with others, since its partitions compute at once.

    ``is_pinned``: its least is not what it needs, but what it was promised; it is never evicted.

    ``planning``: what planning has computed of it is kept within such a block.

    ``within``: makes the best plan of so many bytes, or the smallest one; None: its least is reserved, but
    it is not planned now. ``at_once``: the same, but where finding the plan takes long, another one.
    """

    name: str
    least: Mapping[str, int]
    within: Callable[[int], PlanResult] | None = None
    at_once: Callable[[int], PlanResult] | None = None
    alone: bool = False
    is_pinned: bool = False
    planning: Callable[[], AbstractContextManager[None]] = nullcontext

    def pinned(self, n_bytes: int | None) -> "Sharer":
        """Return the same model with its plan of ``n_bytes`` as the least that it takes.

        ``n_bytes``: 0: all that it may take; None: it is not pinned.

        Raises:
            PlanError: it cannot be planned.
        """
        find = self.within if self.alone else self.at_once
        if n_bytes is None or find is None or self.within is None or self.at_once is None:
            return self
        plan = find(n_bytes or _ANY_BYTES).plan
        return replace(
            self,
            least=plan.memory,
            within=partial(_from, self.within, plan.total_bytes),
            at_once=partial(_from, self.at_once, plan.total_bytes),
            is_pinned=True,
        )

    def hurried(self) -> "Sharer":
        """Return the same model with ``at_once`` for ``within``."""
        return replace(self, within=self.at_once)

    def limited(self, most_bytes: int | None) -> "Sharer":
        """Return the same model with a limit of its own, which its least plan may exceed."""
        within, at_once = self.within, self.at_once
        if most_bytes is None or within is None or at_once is None:
            return self
        return replace(
            self,
            within=lambda n_bytes: within(min(n_bytes, most_bytes)),
            at_once=lambda n_bytes: at_once(min(n_bytes, most_bytes)),
        )

    def takes(self, in_turns: bool) -> bool:
        """Return whether it takes turns if the set computes ``in_turns``."""
        return in_turns and not self.alone


def _from(find: Callable[[int], PlanResult], min_bytes: int, n_bytes: int) -> PlanResult:
    """Return what ``find`` does of so many bytes, or of ``min_bytes``, where these are more."""
    return find(max(min_bytes, n_bytes))


#: A plan; an error that says why a model has none; None for one that is not planned now.
Outcome = PlanResult | RefusedError | PlanError | ModelError | None


@dataclass(frozen=True)
class Shares:
    """The outcome of each model of a set, in its order; ``in_turns``: whether they compute in turns."""

    outcomes: tuple[Outcome, ...]
    in_turns: bool

    def plans(self) -> list[PlanResult]:
        """Return the plans.

        Raises:
            RefusedError, PlanError: a model has none.
        """
        for outcome in self.outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return [outcome for outcome in self.outcomes if isinstance(outcome, PlanResult)]


def sharer(
    name: str,
    program: Program,
    architecture: Architecture,
    profile: Profile | None = None,
    wanted: Wanted = NOTHING,
    *,
    lanes: int = 1,
    search: Search = HERE,
    known: FoundPlans | None = None,
) -> Sharer:
    """Return the model of ``program`` as one of a set; ``wanted``: of its plan, beside its share.

    ``lanes``: requests that a sweep shall carry if the share has room; its least plan has one, as has a
    plan by rules of thumb. ``search``: how plans are searched for, which takes long with a profile.
    ``known``: plans that were found before.

    Raises:
        PlanError: the ring is too small, or it cannot be planned without a profile.
    """
    smallest = Wanted(ring_bytes=wanted.ring_bytes, arena_bytes=wanted.arena_bytes, least=True)
    others = profile.shapes if isinstance(profile, ShapedProfile) else ()
    measured = [profile, *others, *[None] * (len(program.others) - len(others))]
    programs = program.by_shape()
    shapes = list(zip(programs, measured, strict=True))
    with letting_go(*programs):
        leasts = [
            search.now(fit, shape, architecture, smallest, times, known).plan
            for shape, times in shapes
        ]
        fitter = None
        if program.others:
            from pipeline.budget.shapes import ShapesFitter  # most models have one shape

            fitter = ShapesFitter(programs, leasts, measured)
        least = leasts[0] if fitter is None else fitter.smallest

    def asked(index: int, n_bytes: int) -> Wanted:
        return replace(wanted, total_bytes=max(n_bytes, leasts[index].total_bytes))

    def planned(n_bytes: int, plan: Callable[[int, int], PlanResult | None]) -> PlanResult | None:
        with letting_go(*programs):
            return plan(0, n_bytes) if fitter is None else fitter.within(n_bytes, plan)

    def find(n_bytes: int, searched: Searched[PlanResult]) -> PlanResult | None:
        def of_shape(index: int, limit: int) -> PlanResult | None:
            shape, times = shapes[index]
            return searched(
                fit_lanes, shape, architecture, asked(index, limit), times, lanes, known
            )

        return planned(n_bytes, of_shape)

    def thumb(n_bytes: int) -> PlanResult:
        def of_shape(index: int, limit: int) -> PlanResult:
            shape, times = shapes[index]
            return heuristic_plan(shape, architecture, asked(index, limit), leasts[index], times)

        result = planned(n_bytes, of_shape)
        assert result is not None
        return result

    planning = partial(letting_go, *programs)
    return Sharer(name, least.memory, *_remembering(search, find, thumb), planning=planning)


def partitioned_sharer(
    name: str,
    program: Program,
    architecture: Architecture,
    partitions: int,
    profile: Profile | None = None,
    search: Search = HERE,
) -> Sharer:
    """Return the model of ``program`` in partitions that compute at once, as one of a set.

    ``search``: how its plans are searched for.

    Raises:
        PlanError: it cannot be cut into so many, or not be planned by rules of thumb.
    """
    if program.others:
        raise PlanError(f"{name}: {partitions} workers: a pack of several shapes has one")
    question = program, architecture, partitions
    with letting_go(program):
        least = search.now(fit_partitions, *question, None, profile)

    def find(n_bytes: int, searched: Searched[PlanResult]) -> PlanResult | None:
        with letting_go(program):
            return searched(fit_partitions, *question, n_bytes, profile)

    def thumb(n_bytes: int) -> PlanResult:
        return replace(least, heuristic=True)

    planning = partial(letting_go, program)
    finds = _remembering(search, find, thumb)
    return Sharer(name, least.plan.memory, *finds, alone=True, planning=planning)


def _remembering(
    search: Search,
    find: Callable[[int, Searched[PlanResult]], PlanResult | None],
    thumb: Callable[[int], PlanResult],
) -> tuple[Callable[[int], PlanResult], Callable[[int], PlanResult]]:
    """Return ``within`` and ``at_once`` of a Sharer, which remember the last plan that was found.

    Mostly the same number of bytes is requested again, or another one that is enough for the same plan.
    Only one plan is kept, since plans are large. A number for which ``at_once`` found no plan in time is
    remembered, too, so that it is not tried again.
    """
    last: dict[int, PlanResult] = {}
    long: set[int] = set()

    def remembered(n_bytes: int) -> PlanResult | None:
        for requested, result in last.copy().items():
            enough = result.enough_bytes
            if requested == n_bytes or (enough is not None and enough <= n_bytes):
                return result
        return None

    def kept(n_bytes: int, fitted: PlanResult) -> None:
        long.discard(n_bytes)
        last.clear()
        last[n_bytes] = fitted

    def within(n_bytes: int) -> PlanResult:
        fitted = remembered(n_bytes)
        if fitted is None:
            fitted = find(n_bytes, search.fully)
            assert fitted is not None
            kept(n_bytes, fitted)
        return replace(fitted, limit_bytes=n_bytes)

    def at_once(n_bytes: int) -> PlanResult:
        fitted = remembered(n_bytes)
        if fitted is None and n_bytes not in long:
            fitted = find(n_bytes, search.briefly)
        if fitted is None:
            long.add(n_bytes)
            fitted = thumb(n_bytes)
        else:
            kept(n_bytes, fitted)
        return replace(fitted, limit_bytes=n_bytes)

    return within, at_once


def share_out(
    sharers: Sequence[Sharer], budget: Budget, activations: Activations, loaded: int = 0
) -> Shares:
    """Return the plans of ``sharers`` within the free part of ``budget``; they are reserved there.

    Models stand in ``budget`` under their name and position (``place``), since two may have one name. A
    model that cannot be planned (PlanError) takes nothing, and the others are planned. The
    first ``loaded`` are served already, and are not given up for others.
    """
    in_turns, admitted = admission(sharers, budget, activations, loaded)
    for position in admitted:
        each = sharers[position]
        budget.reserve(place(sharers, position), each.least, each.takes(in_turns))
    at_least = _least_sums(sharers)
    hint = _hint(at_least, budget) if activations == "own" else ""
    outcomes: dict[int, Outcome] = {
        position: _refused(
            each,
            budget,
            each.takes(in_turns),
            at_least[activations != "own"],
            len(sharers) > 1,
            hint,
        )
        for position, each in enumerate(sharers)
        if position not in admitted
    }
    outcomes |= _grown(sharers, admitted, budget, in_turns)
    return Shares(tuple(outcomes.get(i) for i in range(len(sharers))), in_turns)


def share_one_by_one(sharers: Sequence[Sharer], budget: Budget, activations: Activations) -> Shares:
    """Return the outcomes of ``sharers`` if they are loaded one after the other, as when a service starts.

    Each joins those that were loaded before it, while the least of the others stays reserved; from one of
    them on the models may compute in turns. In the end the loaded ones share what is left.
    """
    loaded: list[int] = []
    refused: dict[int, Outcome] = {}
    for position, each in enumerate(sharers):
        least = [replace(other, within=None) for other in sharers]
        before = [least[other] for other in loaded]
        waiting = [other for i, other in enumerate(least) if i not in {*loaded, position}]
        together = [*before, each.hurried(), *waiting]
        shares = share_out(together, budget.without(()), activations, len(loaded))
        outcome = shares.outcomes[len(loaded)]
        if isinstance(outcome, Exception):
            refused[position] = outcome
        else:
            loaded.append(position)
    final = share_out([sharers[each] for each in loaded], budget, activations, len(loaded))
    outcomes = refused | dict(zip(loaded, final.outcomes, strict=True))
    return Shares(tuple(outcomes[each] for each in range(len(sharers))), final.in_turns)


def admission(
    sharers: Sequence[Sharer], budget: Budget, activations: Activations, loaded: int = 0
) -> tuple[bool, list[int]]:
    """Return whether ``share_out`` lets models compute in turns, and the positions that it admits.

    The way is chosen by the ``loaded`` models first, then by the next one, which is about to be loaded;
    only then by those that wait.
    """
    admitted = {
        in_turns: _admitted(sharers, budget.without(()), in_turns)
        for in_turns in _WAYS[activations]
    }

    def served(way: bool) -> tuple[int, int, int]:
        staying = sum(position < loaded for position in admitted[way])
        return staying, staying + (loaded in admitted[way]), len(admitted[way])

    in_turns = max(admitted, key=served)  # the first of equal ones
    return in_turns, admitted[in_turns]


def place(sharers: Sequence[Sharer], position: int) -> str:
    """Return the name under which a model of a set stands in the budget that it was planned in."""
    return f"{sharers[position].name}#{position}"


def missing_bytes(sharers: Sequence[Sharer], shares: Shares, budget: Budget) -> list[int | None]:
    """Return the bytes that ``budget`` lacks for each model beside those that are served; None: none."""
    served = Budget(1 << 62)
    for position, outcome in enumerate(shares.outcomes):
        if not isinstance(outcome, Exception):
            each = sharers[position]
            served.reserve(place(sharers, position), each.least, each.takes(shares.in_turns))
    missing: list[int | None] = []
    for each, outcome in zip(sharers, shares.outcomes, strict=True):
        added = sum(served.added(Holding(each.least, each.takes(shares.in_turns))).values())
        lacking = budget.total_for(served.used_bytes + added) - budget.total_bytes
        refused = isinstance(outcome, RefusedError)
        missing.append(lacking if refused and lacking > 0 else None)
    return missing


def _admitted(sharers: Sequence[Sharer], room: Budget, in_turns: bool) -> list[int]:
    """Return the positions of those whose least plans fit together, one after the other."""
    admitted = []
    for position, each in enumerate(sharers):
        turns = each.takes(in_turns)
        if sum(room.added(Holding(each.least, turns)).values()) <= room.free_bytes:
            room.reserve(place(sharers, position), each.least, turns)
            admitted.append(position)
    return admitted


def _grown(
    sharers: Sequence[Sharer], admitted: Sequence[int], budget: Budget, in_turns: bool
) -> dict[int, Outcome]:
    """Plan each of the ``admitted`` within its least and an even part of what is left; return the plans."""
    plans: dict[int, Outcome] = {}
    for done, position in enumerate(admitted):
        within, turns = sharers[position].within, sharers[position].takes(in_turns)
        if within is None:
            continue
        left = len(admitted) - done
        extra = budget.free_bytes // left
        if left > 1:  # the last one takes what the steps leave
            extra = _in_steps(extra, len(admitted))
        room = budget.without([place(sharers, position)])
        most = budget.used_bytes + extra - room.used_bytes
        try:
            with sharers[position].planning():
                fitted = _best(sharers[position].least, within, room, most, turns)
        except (PlanError, ModelError) as exc:
            budget.release(place(sharers, position))
            plans[position] = exc
            continue
        budget.change(place(sharers, position), fitted.plan.memory, turns)
        plans[position] = fitted
    return plans


def _in_steps(n_bytes: int, count: int) -> int:
    """Return ``n_bytes``, the part of one of ``count`` models, rounded down to a step.

    Exact parts are all others with one more model, so that each model would be planned and opened again. In
    steps only those models are that go down one. Among few models steps are small, since parts are to be
    even; among many they are powers of two.
    """
    step = n_bytes * min(count, _MANY) ** 2 // _MANY**2
    bits = max(step.bit_length() - 1, 0)
    return n_bytes >> bits << bits


def _best(
    least: Mapping[str, int],
    within: Callable[[int], PlanResult],
    room: Budget,
    most: int,
    in_turns: bool,
) -> PlanResult:
    """Return the best plan that adds at most ``most`` bytes to ``room``.

    Memory that other models share costs this one nothing, so the plan may be larger than ``most`` by as
    much. How much of it a plan uses is known only when it is made: smaller ones are tried until one fits.
    """
    n_bytes, floor = most, sum(least.values())
    if in_turns:
        n_bytes += sum(room.shared_bytes.get(kind, 0) for kind in SHARED_KINDS)
    while n_bytes >= floor:
        fitted = within(n_bytes)
        excess = sum(room.added(Holding(fitted.plan.memory, in_turns)).values()) - most
        if excess <= 0:
            return fitted
        n_bytes = min(n_bytes, fitted.plan.total_bytes) - excess
    return within(0)


def _least_sums(sharers: Sequence[Sharer]) -> dict[bool, int]:
    """Return the bytes of the least plans of all models together, by whether they compute in turns."""
    return {
        in_turns: Allocations(
            {
                place(sharers, i): Holding(each.least, each.takes(in_turns))
                for i, each in enumerate(sharers)
            }
        ).n_bytes
        for in_turns in (False, True)
    }


def min_used_bytes(sharers: Sequence[Sharer], budget: Budget, activations: Activations) -> int:
    """Return what is used of ``budget`` with the least plan of each model, in the way that takes least."""
    return min(
        budget.used_with(Holding(model.least, model.takes(shared)) for model in sharers)
        for shared in _WAYS[activations]
    )


def _refused(
    each: Sharer, budget: Budget, in_turns: bool, all_bytes: int, has_others: bool, hint: str
) -> RefusedError:
    """Return the error for a model that is not admitted. ``all_bytes``: the least of all together."""
    added = budget.added(Holding(each.least, in_turns))
    return refusal(each.name, added, budget, all_bytes, has_others, hint)


def _hint(at_least: Mapping[bool, int], budget: Budget) -> str:
    """Return a hint which budget is enough in turns; empty where computing in turns saves nothing."""
    if at_least[True] >= at_least[False]:
        return ""
    enough = format_least(budget.total_for(at_least[True]))
    return (
        "; models compute at once, each in memory of its own: in turns (--activations shared) "
        f"{enough} is enough for all"
    )


# Whether models can share activations on a device, and where those lie.

_PAGE_BYTES = 4096


def shared_space(
    device: Device, capacity_bytes: int, asked: Activations
) -> tuple[Space | None, str]:
    """Return space for activations that models share, or None and why there is none; "": as ``asked``."""
    if asked == "own":
        return None, ""
    try:
        space = device.reserve(capacity_bytes)
    except OSError as exc:
        return None, f"models have activations of their own: no addresses to share: {exc}"
    if space is None and asked == "shared":
        return None, "models have activations of their own: this device cannot share them"
    return space, ""


def possible(
    device: Device, asked: Activations, capacity_bytes: int | None = None
) -> tuple[Activations, str]:
    """Return ``asked``, or "own" and a reason where ``device`` cannot share activations.

    ``capacity_bytes``: of the budget; None: there is none yet.
    """
    space, why = shared_space(device, capacity_bytes or _PAGE_BYTES, asked)
    with nullcontext() if space is None else closing(space):
        return ("own" if space is None else asked), why
