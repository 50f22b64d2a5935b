"""Models of an application as our planner takes them, and plans of all of them: in turns, and at once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from papers.applications.application import Application
from pipeline.execution.leases import SHARED_KINDS
from pipeline.fitting.predicting import Predictions
from pipeline.planning.plan import AnyPlan, Plan, partitioned
from pipeline.profiles.profile import Profile
from pipeline.program.partitions import Cuts
from pipeline.program.program import Program
from pipeline.schedule.architectures import Architecture

#: What the papers count: weights, activations, and what kernels take beside them.
_COUNTED = ("staging", "ring", "resident", "arena", "scratch")


@dataclass(frozen=True)
class ApplicationMember:
    """A model of an application as our planner takes it. ``architecture``: how its weights may stream.

    ``cuts``: the pieces before which partitions begin that run at once; () where it is one. Each has a
    core then, and ``profile`` is of one thread.
    """

    program: Program
    profile: Profile | None
    architecture: Architecture
    cuts: tuple[int, ...] = ()

    @cached_property
    def parts(self) -> tuple["ApplicationMember", ...]:
        """Its partitions, each a network of its own; itself where it is one."""
        if not self.cuts:
            return (self,)
        profile = None if self.profile is None else _of_parts(self.profile)
        parts = Cuts(self.program).parts(self.cuts)
        return tuple(ApplicationMember(part, profile, self.architecture) for part in parts)


def _of_parts(profile: Profile) -> Profile:
    """Return what ``profile``, of one thread, says of any partition: the times of its kernels.

    What was found for the whole network, its plans and bounds, holds for none of them.
    """
    return replace(profile, plans=(), limits={}, exact=False)


@dataclass(frozen=True)
class PlannedMember:
    """A plan of a model. ``seconds``: of a request; of partitions at once what the slowest one takes."""

    plan: AnyPlan
    seconds: float

    @property
    def memory_bytes(self) -> int:
        """Weights, arena and scratch."""
        return sum(self.plan.memory[kind] for kind in _COUNTED)

    @property
    def used_bytes(self) -> int:
        """Arena and scratch."""
        return self.plan.arena_bytes + self.plan.scratch_bytes


@dataclass(frozen=True)
class Together:
    """Plans of all models; ``turns``: sets of models, by number, that share one arena.

    ``seconds``: of a frame of each model, one after the other.
    """

    planned: tuple[PlannedMember, ...]
    turns: tuple[tuple[int, ...], ...]

    @property
    def plans(self) -> tuple[AnyPlan, ...]:
        return tuple(item.plan for item in self.planned)

    @property
    def seconds(self) -> float:
        return sum(item.seconds for item in self.planned)

    def bytes_of(self, kinds: Iterable[str]) -> int:
        """Return what these kinds of memory take: of what models share, the largest of each turn."""
        total = 0
        for kind in kinds:
            sizes = [plan.memory[kind] for plan in self.plans]
            if kind in SHARED_KINDS:
                total += sum(max(sizes[model] for model in models) for models in self.turns)
            else:
                total += sum(sizes)
        return total

    @property
    def memory_bytes(self) -> int:
        """Weights, arena and scratch: what seeds 000 and 001 count."""
        return self.bytes_of(_COUNTED)

    @property
    def total_bytes(self) -> int:
        """All that the plans take, as budgets count it."""
        return self.bytes_of(self.plans[0].memory)


_Point = TypeVar("_Point", PlannedMember, Together)


def together(application: Application, planned: Sequence[PlannedMember]) -> Together:
    """Return plans of all models as those of the application."""
    return Together(tuple(planned), turns(application))


def turns(application: Application) -> tuple[tuple[int, ...], ...]:
    """Return which models share an arena: each goes to the first in which none runs with it.

    One whose partitions run at once has its own (pipeline/execution/partitions/pipeline.py).
    """
    found: list[list[int]] = []
    for model in range(len(application.cnns)):
        for own in found:
            if not any(_apart(application, model, other) for other in own):
                own.append(model)
                break
        else:
            found.append([model])
    return tuple(map(tuple, found))


def _apart(application: Application, one: int, other: int) -> bool:
    if application.is_pipelined(one) or application.is_pipelined(other):
        return True
    pairs = ((a, b) for a in application.of_cnn(one) for b in application.of_cnn(other))
    return any(application.parallel(a, b) for a, b in pairs)


def unbeaten(points: Iterable[_Point]) -> list[_Point]:
    """Return those that no smaller one beats, by rising memory."""
    kept: list[_Point] = []
    for point in sorted(points, key=lambda item: (item.memory_bytes, item.seconds)):
        if not kept or point.seconds < kept[-1].seconds:
            kept.append(point)
    return kept


# Plans of partitions that run at once, put together of plans of each (seed 000, Section 2.2).
#
# A frame follows the one before after what the slowest partition takes. So for each such pace every
# partition has the smallest plan that keeps it. Between them lie edges with two buffers each.


def at_once(
    member: ApplicationMember, curves: Sequence[Sequence[PlannedMember]]
) -> list[PlannedMember]:
    """Return plans of ``member``; ``curves``: those of each of its partitions. None beside a better one."""
    return unbeaten(in_step(member, each) for each in _paced(curves))


def _paced(curves: Sequence[Sequence[PlannedMember]]) -> Iterable[list[PlannedMember]]:
    """Yield for each pace the smallest plan of each partition that keeps it."""
    for pace in sorted({item.seconds for curve in curves for item in curve}):
        fast = [[item for item in curve if item.seconds <= pace] for curve in curves]
        if all(fast):
            yield [min(each, key=lambda item: item.memory_bytes) for each in fast]


def joined(program: Program, cuts: Sequence[int], plans: Sequence[Plan]) -> AnyPlan:
    """Return the plan of partitions that begin at ``cuts``, of a plan of each; of one it is its own."""
    if not cuts:
        return plans[0]
    places = Cuts(program)
    return partitioned(plans, cuts, [places.edge_bytes(place) for place in cuts])


def in_step(member: ApplicationMember, chosen: Sequence[PlannedMember]) -> PlannedMember:
    """Return the plan of partitions of ``member`` that run at once, of a plan of each."""
    plans = [plan for item in chosen for plan in item.plan.partitions]
    # Each was planned with the disk to itself: all of them read from one.
    reading = sum(_reading_seconds(plan, member) for plan in plans)
    slowest = max(item.seconds for item in chosen)
    return PlannedMember(joined(member.program, member.cuts, plans), max(slowest, reading))


def _reading_seconds(plan: Plan, member: "ApplicationMember") -> float:
    """Return how long the disk is busy with all that a sweep of ``plan`` reads."""
    read = Predictions.of(member.program, member.profile).estimates.times.read
    depth = plan.choice.depth
    return sum(read(item.n_bytes, depth) for item in plan.reads) / depth
