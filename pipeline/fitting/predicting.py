"""What plans are expected to take: measured, else estimated by a profile's trace or by arithmetic."""

from collections.abc import Callable
from functools import cached_property, lru_cache, partial

from pipeline.fitting.wanted import DelayPrediction
from pipeline.planning.estimates import Estimates, arithmetic
from pipeline.planning.joined_launches import joined
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Plan
from pipeline.profiles.profile import MeasuredPlan, Profile
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES

# Profiles, or none, of which predictions of one program are kept.
_MAX_CACHED = 4


class Predictions:
    """Of plans of ``program``, by ``profile``, or by arithmetic where there is none."""

    def __init__(self, program: Program, profile: Profile | None) -> None:
        self.program = program
        self.profile = profile
        times = arithmetic(program) if profile is None else profile.times
        self.estimates = Estimates(program, times)

    @staticmethod
    def of(program: Program, profile: Profile | None) -> "Predictions":
        """Return those that are kept with ``program``."""
        return program.made(_cached)(profile)

    def seconds(self, plan: Plan) -> float:
        """Return about what a pass of ``plan`` takes."""
        measured = self.measured(plan)
        return self.estimated(plan) if measured is None else self.of_measured(measured)

    def estimated(self, plan: Plan) -> float:
        """Return the same by estimate, whatever was measured."""
        return self._scale * self.estimates.seconds(plan)

    def of_measured(self, plan: MeasuredPlan) -> float:
        """Return what a pass of a measured plan took."""
        assert self.profile is not None
        return plan.ratio * self.profile.resident.median

    def measured(self, plan: Plan) -> MeasuredPlan | None:
        """Return what was measured of exactly ``plan``."""
        return None if self.profile is None else self.profile.measured(plan)

    def prediction(self, plan: Plan) -> DelayPrediction | None:
        """Return what a request is expected to take in ``plan``; None without a profile."""
        profile = self.profile
        if profile is None:
            return None
        return DelayPrediction(
            sweep_seconds=self.seconds(plan),
            stall_seconds=self._scale * self.estimates.sweep(plan).stall_seconds,
            outside_seconds=profile.outside.median,
            sweep_bound_seconds=profile.bound_seconds(plan),
            longest_outside_seconds=profile.outside.max,
            measured=self.measured(plan) is not None,
        )

    @cached_property
    def _scale(self) -> float:
        """What was measured of the resident network by its estimate: traces take longer, others shorter."""
        is_complete = len(self.program.own) == len(self.program.pieces)
        if self.profile is None or not is_complete:
            return 1.0
        resident = joined(self.program, make_plan(self.program, ARCHITECTURES["pre"]))
        estimated = self.estimates.seconds(resident)
        return self.profile.resident.median / estimated if estimated else 1.0


def _cached(program: Program) -> Callable[[Profile | None], Predictions]:
    return lru_cache(maxsize=_MAX_CACHED)(partial(Predictions, program))
