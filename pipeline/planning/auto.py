"""The plan of ``auto``: ring, chunks, reads and resident weights chosen together on a profile."""

from dataclasses import dataclass
from math import inf

from pipeline.planning.draft import Draft, Drafts, Judge, bounded_seconds, idle_seconds
from pipeline.planning.explain import explain
from pipeline.planning.plan import Plan
from pipeline.planning.tune import Tuner, smallest_bytes
from pipeline.program.program import Program

# The least memory for a delay is found to within this ratio.
_PRECISION = 1.05


@dataclass(frozen=True)
class Goal:
    """A sweep shall take at most so many ``seconds``; ``bounded``: by its bound, not as a rule."""

    seconds: float
    bounded: bool = False

    @property
    def judge(self) -> Judge:
        """What tells how long a draft takes."""
        return bounded_seconds if self.bounded else idle_seconds


@dataclass(frozen=True)
class AutoPlan:
    """``draft``: what it was chosen by. ``reasons`` in words. ``complete``: no clock ended it."""

    plan: Plan
    draft: Draft
    reasons: tuple[str, ...]
    complete: bool = True


def plan_auto(
    drafts: Drafts, weight_limit_bytes: int | None, goal: Goal | None = None, enough: float = inf
) -> AutoPlan:
    """Return the fastest plan whose ``weight_bytes`` are within the limit (None: no limit).

    With a ``goal``: the plan of about the least weight memory that reaches it within the limit, or the
    fastest one; where that is a bound, ``drafts`` are of the longest durations.

    ``enough``: seconds of a plan that is known; one that is slower need not be found.

    Raises:
        PlanError: the limit is too small for any plan, or for one that is as fast as is ``enough``.
    """
    program = drafts.program
    limit = drafts.all_resident_bytes
    if weight_limit_bytes is not None:
        limit = min(limit, weight_limit_bytes)
    tuner = Tuner(program, drafts, limit, goal.judge if goal else idle_seconds, enough)
    draft = tuner.best()
    if goal is not None:
        draft = _least(program, drafts, draft, goal)
    reasons = (*explain(program, draft), tuner.effort)
    return AutoPlan(drafts.plan(draft.choice), draft, reasons, tuner.complete)


def _least(program: Program, drafts: Drafts, fastest: Draft, goal: Goal) -> Draft:
    """Return about the smallest draft that reaches ``goal``, or ``fastest``, the largest allowed."""
    if goal.judge(fastest) > goal.seconds:
        return fastest
    found, least = fastest, smallest_bytes(program, drafts)
    tried = least
    while True:
        draft = Tuner(program, drafts, tried, goal.judge).best(rounds=1)
        if goal.judge(draft) <= goal.seconds:
            found = min(found, draft, key=lambda item: item.weight_bytes)
        else:
            least = tried
        if found.weight_bytes <= _PRECISION * least:
            return found
        tried = max(round((least * found.weight_bytes) ** 0.5), least + 1)
