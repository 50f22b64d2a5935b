"""The one decision of planning, which commands, benchmarks and the service share.

Pure: what is found is kept in the profile's ``known`` in memory; who wants it on the disk saves it there.
With a profile it may take seconds.
"""

from dataclasses import asdict, replace

from loader.errors import LoaderError
from models.packs.manifest import Manifest
from pipeline.fitting.joining import with_joined
from pipeline.fitting.judge import check, judged
from pipeline.fitting.wanted import NOTHING, Fitted, Wanted
from pipeline.fitting.weights import plan_weights
from pipeline.fitting.within import Within
from pipeline.planning.found_plans import PLANNER_VERSION, FoundPlan, canonical
from pipeline.planning.make import make_plan, of_weights
from pipeline.planning.plan import Choice, PlanError
from pipeline.profiles.profile import Profile
from pipeline.program.regions import RegionError
from pipeline.schedule.architectures import Architecture


def fit(
    manifest: Manifest,
    architecture: Architecture,
    wanted: Wanted = NOTHING,
    profile: Profile | None = None,
) -> Fitted:
    """Return the best plan of ``architecture`` that is what is ``wanted``.

    What an earlier search on ``profile`` found is taken, unless it was quick and this may take its time.

    Raises:
        PlanError: there is none, with the figures; or not without a profile. ProfileError: the profile
            lacks a kernel.
    """
    architecture = of_weights(architecture, manifest)
    _check_profile(manifest, architecture, wanted, profile)
    searched = profile if architecture.tuned and wanted.ring_bytes is None else None
    question = _question(architecture, wanted)
    known = None if searched is None else searched.known.get(question)
    if known is not None and known.thorough >= wanted.thorough:
        found = _again(manifest, architecture, wanted, profile, known)
        if found is not None:
            return found
    fitted = replace(_found(manifest, architecture, wanted, profile), thorough=wanted.thorough)
    check(manifest, fitted, wanted)
    if searched is not None:
        choice, reasons = fitted.plan.choice, fitted.reasons
        searched.known.add(question, FoundPlan(choice, reasons, fitted.curve, wanted.thorough))
    return fitted


def _found(
    manifest: Manifest, architecture: Architecture, wanted: Wanted, profile: Profile | None
) -> Fitted:
    if wanted.ring_bytes is not None:
        choice = Choice(wanted.ring_bytes, ahead=architecture.ahead)
        given = judged(make_plan(manifest, architecture, choice=choice), profile)
        return with_joined(manifest, given, profile)
    if wanted.least:
        return Within(manifest, architecture, wanted, profile).least()
    if wanted.delay_seconds is not None:
        return Within(manifest, architecture, wanted, profile).in_time()
    if wanted.total_bytes is not None or wanted.arena_bytes is not None:
        return Within(manifest, architecture, wanted, profile).fastest()
    best = plan_weights(manifest, architecture, wanted.weight_bytes, profile)
    return with_joined(manifest, best, profile)


def _again(
    manifest: Manifest,
    architecture: Architecture,
    wanted: Wanted,
    profile: Profile | None,
    known: FoundPlan,
) -> Fitted | None:
    """Return what an earlier search found; None: it is no plan, or not what is wanted."""
    try:
        plan = make_plan(manifest, architecture, choice=known.choice)
        fitted = judged(plan, profile, known.reasons, known.curve)
        check(manifest, fitted, wanted)
    except (PlanError, LoaderError, RegionError):
        return None
    return replace(fitted, thorough=known.thorough)


def _check_profile(
    manifest: Manifest, architecture: Architecture, wanted: Wanted, profile: Profile | None
) -> None:
    """Refuse what cannot be planned without a profile.

    Raises:
        PlanError: there is none; the message has the remedy.
    """
    searched = architecture.tuned == "search" and wanted.ring_bytes is None
    if profile is None and (searched or wanted.delay_seconds is not None):
        raise PlanError(
            f"{manifest.name}: {architecture.name} is planned on a profile, and the pack has none "
            "of this machine: run `layerstream profile PACK`, or give the ring's size (--ring)"
        )


def _question(architecture: Architecture, wanted: Wanted) -> str:
    """Return what a search depends on beside the profile and its effort, as canonical JSON."""
    asked = asdict(wanted)
    del asked["thorough"]
    shape = [architecture.name, *architecture.stages, architecture.slots]
    return canonical({"planner": PLANNER_VERSION, "architecture": shape, **asked})
