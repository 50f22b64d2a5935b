"""The times of plans by a profile, and whether they are within the limits that were asked for."""

from dataclasses import replace

from pipeline.fitting.wanted import DelayPrediction, Fitted, Wanted
from pipeline.planning.found_plans import Point
from pipeline.planning.joined_launches import joined
from pipeline.planning.plan import Plan, PlanError
from pipeline.planning.words import chunk_advice, milliseconds, sized
from pipeline.profiles.profile import Profile
from pipeline.program.program import Program
from pipeline.timing.timeline import timeline


def judged(
    plan: Plan,
    profile: Profile | None,
    reasons: tuple[str, ...] = (),
    curve: tuple[Point, ...] = (),
) -> Fitted:
    """Return ``plan`` with what ``profile`` says of it.

    Raises:
        ProfileError: the profile lacks one of its kernels.
    """
    return Fitted(plan, None if profile is None else predict(plan, profile), reasons, curve)


def with_joined(
    program: Program, fitted: Fitted, profile: Profile | None, most_bytes: int | None = None
) -> Fitted:
    """Return ``fitted`` with short kernels that run as one, where these take at most ``most_bytes`` more.

    None: all there are. With what ``profile`` says of it then; nothing else of the plan changes.
    """
    plan = joined(program, fitted.plan, most_bytes)
    again = judged(plan, profile, fitted.reasons, fitted.curve)
    return replace(again, thorough=fitted.thorough, complete=fitted.complete)


def predict(plan: Plan, profile: Profile) -> DelayPrediction:
    """Return what a request is expected to take in ``plan``.

    Raises:
        ProfileError: the profile lacks one of its kernels.
    """
    sweep = timeline(plan.stages, profile.durations(plan), plan.stages[0].ahead)
    return DelayPrediction(
        sweep.delay_seconds,
        sweep.stall_seconds,
        profile.outside.median,
        profile.bound_seconds(plan),
        profile.outside.max,
    )


def seconds_of(fitted: Fitted, wanted: Wanted) -> float:
    """Return the time of a request that is judged: its bound if that is wanted and known, or its delay."""
    expected = fitted.prediction
    assert expected is not None  # no time is wanted without a profile
    bound = expected.bound_seconds if wanted.guaranteed else None
    return expected.delay_seconds if bound is None else bound


def reaches(fitted: Fitted, wanted: Wanted) -> bool:
    """Return whether a plan is as fast as is wanted."""
    return wanted.delay_seconds is None or seconds_of(fitted, wanted) <= wanted.delay_seconds


def check(program: Program, fitted: Fitted, wanted: Wanted) -> None:
    """Refuse a plan that is not what was wanted.

    Raises:
        PlanError: it takes too much, with what is required and available; or too long.
    """
    check_fits(program, fitted.plan, wanted.total_bytes)
    if not fits_arena(fitted.plan, wanted):
        raise PlanError(
            f"{program.name}: {sized(wanted.arena_bytes or 0)} of activations are too few; "
            f"what was found takes {sized(activation_bytes(fitted.plan))} (arena, scratch, tensors)"
        )
    limit, plan = wanted.weight_bytes, fitted.plan
    if limit is not None and plan.weight_bytes > limit:
        has_ring = wanted.ring_bytes is not None
        least = "with that ring it" if has_ring else f"the least of {plan.architecture.name}"
        raise PlanError(
            f"{program.name}: {sized(limit)} of weights in memory are too few; {least} "
            f"is {sized(plan.weight_bytes)}: allow as much, or take another architecture"
            f"{chunk_advice(program, plan.architecture)}"
        )
    if not reaches(fitted, wanted):
        raise PlanError(f"{program.name}: {too_late(fitted, wanted)}")


def activation_bytes(plan: Plan) -> int:
    """Return what a plan has beside weights, sessions and objects: arena, scratch, tensors."""
    return plan.arena_bytes + plan.scratch_bytes + plan.io_bytes


def fits_arena(plan: Plan, wanted: Wanted) -> bool:
    """Return whether activations take no more than is wanted."""
    return wanted.arena_bytes is None or activation_bytes(plan) <= wanted.arena_bytes


def check_fits(program: Program, plan: Plan, n_bytes: int | None) -> None:
    """Refuse a plan that takes more than ``n_bytes``.

    Raises:
        PlanError: it does; the message has what is required and available, and what takes most.
    """
    if n_bytes is not None and plan.total_bytes > n_bytes:
        kind, most = max(plan.memory.items(), key=lambda item: item[1])
        raise PlanError(
            f"{program.name}: required {sized(plan.total_bytes)}, available {sized(n_bytes)}, "
            f"excess {sized(plan.total_bytes - n_bytes)}; most of it is {kind}: {sized(most)}"
        )


def too_late(fastest: Fitted, wanted: Wanted) -> str:
    """Return why the ``fastest`` plan is none; to be typed back, what it takes is rounded up."""
    limited = any((wanted.total_bytes, wanted.weight_bytes, wanted.ring_bytes))
    within = "" if wanted.total_bytes is None else f" within {sized(wanted.total_bytes)}"
    remedy = f"give at least that{', or more memory' if limited else ''}"
    asked = milliseconds(wanted.delay_seconds or 0.0)
    taken = milliseconds(seconds_of(fastest, wanted), up=True)
    bound = fastest.prediction and fastest.prediction.bound_seconds
    if wanted.guaranteed and bound is not None:
        return (
            f"a deadline of {asked} is below the bound of the fastest plan{within}, {taken}; "
            f"{remedy}"
        )
    return f"a delay of {asked} cannot be reached{within}; the fastest plan takes {taken}; {remedy}"
