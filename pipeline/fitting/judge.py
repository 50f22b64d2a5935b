"""The times of plans by a profile, and whether they are within the limits that were asked for."""

from dataclasses import replace
from math import inf

from pipeline.fitting.predicting import Predictions
from pipeline.fitting.wanted import EnginePlanResult, Wanted
from pipeline.planning.found_plans import Point
from pipeline.planning.joined_launches import joined
from pipeline.planning.plan import Plan, PlanError
from pipeline.planning.words import chunk_advice, milliseconds, sized
from pipeline.profiles.profile import Profile
from pipeline.program.program import Program


def judged(
    program: Program,
    plan: Plan,
    profile: Profile | None,
    reasons: tuple[str, ...] = (),
    curve: tuple[Point, ...] = (),
) -> EnginePlanResult:
    """Return ``plan`` with what ``profile`` says of it."""
    return EnginePlanResult(plan, Predictions.of(program, profile).prediction(plan), reasons, curve)


def with_joined(
    program: Program,
    fitted: EnginePlanResult,
    profile: Profile | None,
    most_bytes: int | None = None,
) -> EnginePlanResult:
    """Return ``fitted`` with short kernels that run as one, where these take at most ``most_bytes`` more.

    None: all there are. With what ``profile`` says of it then; nothing else of the plan changes.
    """
    again = judged(
        program, joined(program, fitted.plan, most_bytes), profile, fitted.reasons, fitted.curve
    )
    return replace(again, complete=fitted.complete)


def seconds_of(fitted: EnginePlanResult, wanted: Wanted) -> float:
    """Return the time of a request that is judged: its bound if that is wanted and known, or its delay."""
    expected = fitted.prediction
    assert expected is not None  # no time is wanted without a profile
    if not wanted.guaranteed:
        return expected.delay_seconds
    return inf if expected.bound_seconds is None else expected.bound_seconds


def reaches(fitted: EnginePlanResult, wanted: Wanted) -> bool:
    """Return whether a plan is as fast as is wanted."""
    return wanted.delay_seconds is None or seconds_of(fitted, wanted) <= wanted.delay_seconds


def check(program: Program, fitted: EnginePlanResult, wanted: Wanted) -> None:
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


def too_late(fastest: EnginePlanResult, wanted: Wanted) -> str:
    """Return why the ``fastest`` plan is none; to be typed back, what it takes is rounded up."""
    limited = any((wanted.total_bytes, wanted.weight_bytes, wanted.ring_bytes))
    within = "" if wanted.total_bytes is None else f" within {sized(wanted.total_bytes)}"
    remedy = f"give at least that{', or more memory' if limited else ''}"
    asked = milliseconds(wanted.delay_seconds or 0.0)
    seconds = seconds_of(fastest, wanted)
    if seconds == inf:
        more = ", or give more memory" if limited else ""
        return (
            f"a deadline of {asked} needs a bound, and no plan{within} has one that was measured here; "
            f"measure one (`layerstream profile --bound`){more}"
        )
    taken = milliseconds(seconds, up=True)
    if wanted.guaranteed:
        return (
            f"a deadline of {asked} is below the least bound that was measured{within}, {taken}; "
            f"{remedy}, or measure another plan (`layerstream profile --bound`)"
        )
    return f"a delay of {asked} cannot be reached{within}; the fastest plan takes {taken}; {remedy}"
