"""Watching the delay bound: was a sweep within what the bound assumes, and did it keep to the bound?"""

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.planning.plan import Plan
from pipeline.profiles.delay_limits import SweepLimits
from pipeline.schedule.trace import TraceEvent
from pipeline.timing.traced_durations import services


@dataclass(frozen=True)
class DelayVerdict:
    """``within``: r, c and k stayed within the limits. ``exceeded``: the delay is above the bound.

    Both at once contradict the analysis; ``exceeded`` alone is a sweep that the bound says nothing of.
    """

    within: bool
    exceeded: bool

    @property
    def violation(self) -> bool:
        return self.within and self.exceeded


class BoundWatch:
    """Judges the sweeps of ``plan`` and counts. Pure: fed with traces, one thread at a time."""

    def __init__(self, plan: Plan, limits: SweepLimits) -> None:
        self._plan = plan
        self._limits = limits
        self.bound_seconds = limits.bound_seconds(plan)
        self.sweeps = self.within = self.exceeded = self.violations = 0
        self.longest_within_seconds = 0.0

    def see(self, events: Iterable[TraceEvent], delay_seconds: float) -> DelayVerdict:
        """Judge one complete sweep by its trace and its delay.

        Raises:
            ValueError: the trace is not that of a complete sweep.
        """
        served = services(self._plan.stages, events, self._plan.choice.depth)
        verdict = DelayVerdict(
            self._limits.covers(self._plan, served),
            delay_seconds > self.bound_seconds,
        )
        self.sweeps += 1
        self.within += verdict.within
        self.exceeded += verdict.exceeded
        self.violations += verdict.violation
        if verdict.within:
            self.longest_within_seconds = max(self.longest_within_seconds, delay_seconds)
        return verdict
