"""Plans whose sweeps carry several requests: as many lanes as have room, then the best way to stream.

Lanes come before resident weights: who asks for them has requests that wait, and weights that are read once
for all of these take less time than weights of which a part is not read.
"""

from dataclasses import replace

from pipeline.fitting.fit import fit
from pipeline.fitting.judge import judged
from pipeline.fitting.wanted import Fitted, Wanted
from pipeline.planning.found_plans import FoundPlans
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Plan
from pipeline.profiles.profile import Profile
from pipeline.program.program import Program
from pipeline.schedule.architectures import Architecture

# A plan that is too large with its lanes is made again for less memory so often.
_MOST_TRIES = 3


def fit_lanes(
    program: Program,
    architecture: Architecture,
    wanted: Wanted,
    profile: Profile | None,
    lanes: int,
    known: FoundPlans | None = None,
) -> Fitted:
    """Return the best plan within ``wanted.total_bytes`` whose sweeps carry up to ``lanes`` requests.

    As many lanes as the smallest plan has room for; one, as ``fit`` does, where there is no room for more.
    What is predicted and bounded is a sweep of one request. Raises as ``fit``.
    """
    room = wanted.total_bytes
    if room is None or lanes == 1:
        return fit(program, architecture, wanted, profile, known)
    least = fit(
        program, architecture, replace(wanted, total_bytes=None, least=True), profile, known
    )
    fitting = (number for number in range(lanes, 1, -1) if _takes(program, least, number) <= room)
    number = next(fitting, 1)
    if number == 1:
        return fit(program, architecture, wanted, profile, known)
    left = room
    for _ in range(_MOST_TRIES):
        fitted = fit(program, architecture, replace(wanted, total_bytes=left), profile, known)
        plan = _with_lanes(program, fitted.plan, number)
        excess = plan.total_bytes - room
        if excess <= 0:
            break
        left = max(left - excess, least.plan.total_bytes)
    else:
        fitted, plan = least, _with_lanes(program, least.plan, number)
    reason = f"{number} lanes of {lanes}: a request of a sweep takes {plan.lane_bytes} bytes"
    return judged(plan, profile, (*fitted.reasons, reason), fitted.curve)


def _takes(program: Program, fitted: Fitted, lanes: int) -> int:
    return _with_lanes(program, fitted.plan, lanes).total_bytes


def _with_lanes(program: Program, plan: Plan, lanes: int) -> Plan:
    return make_plan(program, plan.architecture, choice=replace(plan.choice, lanes=lanes))
