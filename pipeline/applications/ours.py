"""Our own plans for an application: every model's, and one arena for models that never run together.

``preloaded``: all weights stay in memory, as the papers have it, and parts of the network run on rows.
``streaming``: weights pass through a ring as well.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from models.packs.manifest import Manifest
from pipeline.applications.application import Application
from pipeline.execution.leases import SHARED_KINDS
from pipeline.fitting.fit import fit
from pipeline.fitting.judge import judged
from pipeline.fitting.row_variants import estimated_seconds, row_variants
from pipeline.fitting.wanted import Fitted, Wanted
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.planning.rows.variants import ALL_STEPS
from pipeline.profiles.profile import Profile
from pipeline.schedule.architectures import ARCHITECTURES, Architecture

#: What the papers count: weights, activations, and what kernels take beside them.
_COUNTED = ("staging", "ring", "resident", "arena", "scratch")


@dataclass(frozen=True)
class Member:
    """A model of an application as our planner knows it. ``architecture``: how its weights may stream."""

    manifest: Manifest
    profile: Profile | None
    architecture: Architecture


@dataclass(frozen=True)
class Together:
    """Plans of all models; ``turns``: sets of models, by number, that share one arena."""

    fitted: tuple[Fitted, ...]
    turns: tuple[tuple[int, ...], ...]
    seconds: float

    @property
    def plans(self) -> tuple[Plan, ...]:
        return tuple(item.plan for item in self.fitted)

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


def turns(application: Application) -> tuple[tuple[int, ...], ...]:
    """Return which models share an arena: each goes to the first in which none runs with it."""
    found: list[list[int]] = []
    for model in range(len(application.cnns)):
        for own in found:
            if not any(_at_once(application, model, other) for other in own):
                own.append(model)
                break
        else:
            found.append([model])
    return tuple(map(tuple, found))


def _at_once(application: Application, one: int, other: int) -> bool:
    pairs = ((a, b) for a in application.of_cnn(one) for b in application.of_cnn(other))
    return any(application.parallel(a, b) for a, b in pairs)


def preloaded(member: Member, steps: int = ALL_STEPS) -> list[Fitted]:
    """Return plans with all weights in memory, from the least activations on; none beside a better one.

    Raises:
        ProfileError: the profile lacks a kernel.
    """
    manifest, profile = member.manifest, member.profile
    pre = ARCHITECTURES["pre"]
    # All weights are there anyway: a region that needs many of them at once costs no ring.
    spans = tuple(replace(span, length=1) for span in manifest.spans)
    weightless = manifest.model_copy(update={"spans": spans})
    found = [
        judged(make_plan(manifest, pre, choice=Choice(regions=item.regions)), profile)
        for item in row_variants(weightless, member.architecture, profile, steps)
    ]
    kept: list[Fitted] = []
    for item in sorted(found, key=lambda item: (_used(item), seconds_of(manifest, item))):
        if not kept or seconds_of(manifest, item) < seconds_of(manifest, kept[-1]):
            kept.append(item)
    return kept


def seconds_of(manifest: Manifest, fitted: Fitted) -> float:
    """Return the delay of a request, as far as anybody knows."""
    if fitted.prediction is not None:
        return fitted.prediction.delay_seconds
    return estimated_seconds(manifest, fitted.plan)


def _used(fitted: Fitted) -> int:
    return fitted.plan.arena_bytes + fitted.plan.scratch_bytes


def preloaded_frontier(application: Application, members: Sequence[Member]) -> list[Together]:
    """Return plans of an application with all weights in memory: memory against delay.

    Raises:
        ProfileError: a profile lacks a kernel.
    """
    curves = [preloaded(member) for member in members]
    limits = sorted({_used(item) for curve in curves for item in curve})
    points = []
    for limit in limits:
        chosen = [
            max((item for item in curve if _used(item) <= limit), key=_used, default=curve[0])
            for curve in curves
        ]
        points.append(together(application, members, chosen))
    return unbeaten(points)


def streaming_frontier(
    application: Application, members: Sequence[Member], points: int
) -> list[Together]:
    """Return plans of an application that stream, from the least memory up to that of all weights.

    Raises:
        PlanError, ProfileError: a model has none.
    """
    least = [
        fit(item.manifest, item.architecture, Wanted(least=True), item.profile) for item in members
    ]
    most = [fit(item.manifest, ARCHITECTURES["pre"], profile=item.profile) for item in members]
    found = [together(application, members, least)]
    for step in range(1, points):
        chosen = [
            fit(
                item.manifest,
                item.architecture,
                Wanted(total_bytes=_between(low.plan, high.plan, step / (points - 1))),
                item.profile,
            )
            for item, low, high in zip(members, least, most, strict=True)
        ]
        found.append(together(application, members, chosen))
    return unbeaten(found)


def _between(low: Plan, high: Plan, part: float) -> int:
    smaller = max(low.total_bytes, 1)
    ratio: float = (high.total_bytes / smaller) ** part
    return max(round(smaller * ratio), low.total_bytes)


def together(
    application: Application, members: Sequence[Member], chosen: Sequence[Fitted]
) -> Together:
    """Return plans of all models as those of the application; delays add up, one request of each."""
    pairs = zip(members, chosen, strict=True)
    seconds = sum(seconds_of(member.manifest, item) for member, item in pairs)
    return Together(tuple(chosen), turns(application), seconds)


def unbeaten(points: Iterable[Together]) -> list[Together]:
    """Return those that no smaller one beats, by rising memory."""
    kept: list[Together] = []
    for point in sorted(points, key=lambda item: (item.memory_bytes, item.seconds)):
        if not kept or point.seconds < kept[-1].seconds:
            kept.append(point)
    return kept
