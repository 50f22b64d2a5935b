"""Models of an application as our planner knows them, and plans of all of them together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from papers.applications.application import Application
from pipeline.execution.leases import SHARED_KINDS
from pipeline.fitting.partitioned import of_parts
from pipeline.planning.plan import Plan
from pipeline.profiles.profile import Profile
from pipeline.program.partitions import Cuts
from pipeline.program.program import Program
from pipeline.schedule.architectures import Architecture

#: What the papers count: weights, activations, and what kernels take beside them.
_COUNTED = ("staging", "ring", "resident", "arena", "scratch")


@dataclass(frozen=True)
class ApplicationMember:
    """A model of an application as our planner knows it. ``architecture``: how its weights may stream.

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
        profile = None if self.profile is None else of_parts(self.profile)
        parts = Cuts(self.program).parts(self.cuts)
        return tuple(ApplicationMember(part, profile, self.architecture) for part in parts)


@dataclass(frozen=True)
class PlannedMember:
    """A plan of a model. ``seconds``: of a request; of partitions at once what the slowest one takes."""

    plan: Plan
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
    def plans(self) -> tuple[Plan, ...]:
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
