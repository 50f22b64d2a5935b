"""What a plan is expected to take, and the plans that only such expectations can find."""

from dataclasses import asdict, dataclass

from loader.errors import LoaderError
from models.packs.manifest import Manifest
from pipeline.planning.auto import plan_auto
from pipeline.planning.found_plans import PLANNER_VERSION, FoundPlan, Point, canonical
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan, PlanError
from pipeline.planning.rows.variants import ALL_STEPS, QUICK_STEPS
from pipeline.planning.search import search
from pipeline.planning.thumb import rule_of_thumb
from pipeline.profiles.profile import Profile
from pipeline.program.regions import Region, RegionError
from pipeline.schedule.architectures import Architecture
from pipeline.timing.simulator import Simulated, simulate

_PAGE_BYTES = 4096
# The search tries rings in steps of this, or of this part of the weights.
_STEP_BYTES = 1 << 20
_STEPS = 128


@dataclass(frozen=True)
class Wanted:
    """What the user asks of a plan. Bytes and seconds; None: not asked.

    ``ring_bytes``: of each ring. ``weight_bytes``: limit of all memory for weights. ``delay_seconds``: as
    little memory as reaches it. ``regions``: what runs on rows. ``thorough``: it may take its time.
    """

    ring_bytes: int | None = None
    weight_bytes: int | None = None
    delay_seconds: float | None = None
    regions: tuple[Region, ...] = ()
    thorough: bool = False

    @property
    def steps(self) -> int:
        """How long variants on rows are searched for."""
        return ALL_STEPS if self.thorough else QUICK_STEPS


@dataclass(frozen=True)
class Found:
    """A plan. ``reasons``: in words, why it is as it is. ``curve``: of the search for its ring."""

    plan: Plan
    reasons: tuple[str, ...] = ()
    curve: tuple[Point, ...] = ()


@dataclass(frozen=True)
class Prediction:
    """What one request is expected to take; the head of its reads has been read while idle.

    ``outside_seconds``: of the request, not of the sweep. ``bound_seconds``: of both; None where the
    profile is not exact.
    """

    simulated: Simulated
    outside_seconds: float
    bound_seconds: float | None

    @property
    def delay_seconds(self) -> float:
        return self.simulated.delay_seconds + self.outside_seconds

    @property
    def bound_ms(self) -> float | None:
        return None if self.bound_seconds is None else self.bound_seconds * 1e3


def find_plan(
    manifest: Manifest, architecture: Architecture, wanted: Wanted, profile: Profile
) -> Found:
    """Return the plan that ``architecture`` has under what is wanted.

    Raises:
        PlanError: it cannot be. ProfileError: the profile lacks one of its kernels.
    """
    if wanted.ring_bytes is not None:
        choice = Choice(wanted.ring_bytes, ahead=architecture.ahead)
        return Found(make_plan(manifest, architecture, choice=choice))
    if architecture.tuned:
        return _known(manifest, architecture, wanted, profile) or _searched(
            manifest, architecture, wanted, profile
        )
    if wanted.weight_bytes is None:
        return Found(make_plan(manifest, architecture))
    return Found(rule_of_thumb(manifest, architecture, wanted.weight_bytes, wanted.regions))


def _known(
    manifest: Manifest, architecture: Architecture, wanted: Wanted, profile: Profile
) -> Found | None:
    """Return what an earlier search found; None: there was none, or it is no plan of what is wanted."""
    known = profile.known.get(_question(architecture, wanted))
    if known is None or known.choice.regions != wanted.regions:
        return None
    try:
        plan = make_plan(manifest, architecture, choice=known.choice)
    except (PlanError, LoaderError, RegionError):
        return None
    if (
        architecture.tuned == "auto"
        and wanted.weight_bytes is not None
        and plan.weight_bytes > wanted.weight_bytes
    ):
        return None
    return Found(plan, known.reasons, known.curve)


def _searched(
    manifest: Manifest, architecture: Architecture, wanted: Wanted, profile: Profile
) -> Found:
    """Search and keep what was found."""
    if architecture.tuned == "search":
        step = max(_STEP_BYTES, manifest.weight_bytes // _STEPS // _PAGE_BYTES * _PAGE_BYTES)
        result = search(manifest, architecture, profile.durations, step)
        plan = make_plan(manifest, architecture, result.chosen.ring_bytes)
        found = Found(plan, curve=result.curve)
    else:
        auto = plan_auto(
            manifest,
            wanted.weight_bytes,
            wanted.delay_seconds,
            profile.durations,
            architecture,
            wanted.regions,
        )
        found = Found(auto.plan, auto.reasons)
    known = FoundPlan(found.plan.choice, found.reasons, found.curve)
    profile.known.add(_question(architecture, wanted), known)
    return found


def _question(architecture: Architecture, wanted: Wanted) -> str:
    """Return what a search depends on beside the profile, as canonical JSON."""
    return canonical(
        {
            "planner": PLANNER_VERSION,
            "architecture": [architecture.name, *architecture.stages, architecture.slots],
            "weight_bytes": wanted.weight_bytes,
            "delay_seconds": wanted.delay_seconds,
            "regions": [asdict(region) for region in wanted.regions],
        }
    )


def predict(plan: Plan, profile: Profile) -> Prediction:
    """Return what a request is expected to take in ``plan``.

    Raises:
        ProfileError: the profile lacks one of its kernels.
    """
    bound = profile.bound_seconds(plan)
    return Prediction(
        simulate(plan.stages, profile.durations(plan), plan.stages[0].ahead),
        profile.outside.median,
        None if bound is None else bound + profile.outside.max,
    )
