"""Plans of partitions that run at once, put together of plans of each (seed 000, Section 2.2).

A frame follows the one before after what the slowest partition takes. So for each such pace every
partition has the smallest plan that keeps it. Between them lie edges with two buffers each.
"""

from collections.abc import Iterable, Sequence

from papers.applications.ours.members import ApplicationMember, PlannedMember, unbeaten
from pipeline.fitting.arithmetic import READ_BYTES_A_SECOND
from pipeline.planning.partitions.plan import pipeline_plan
from pipeline.planning.plan import Plan
from pipeline.profiles.profile import Profile
from pipeline.program.partitions import Cuts
from pipeline.program.program import Program


def at_once(
    member: ApplicationMember, curves: Sequence[Sequence[PlannedMember]]
) -> list[PlannedMember]:
    """Return plans of ``member``; ``curves``: those of each of its partitions. None beside a better one."""
    return unbeaten(in_step(member, each) for each in _paced(curves))


def _paced(curves: Sequence[Sequence[PlannedMember]]) -> Iterable[list[PlannedMember]]:
    """Yield for each pace the smallest plan of each partition that keeps it."""
    for pace in sorted({item.seconds for curve in curves for item in curve}):
        fast = [[item for item in curve if item.seconds <= pace] for curve in curves]
        if all(fast):
            yield [min(each, key=lambda item: item.memory_bytes) for each in fast]


def joined(program: Program, cuts: Sequence[int], plans: Sequence[Plan]) -> Plan:
    """Return the plan of partitions that begin at ``cuts``, of a plan of each; of one it is its own."""
    if not cuts:
        return plans[0]
    places = Cuts(program)
    return pipeline_plan(plans, cuts, [places.edge_bytes(place) for place in cuts])


def in_step(member: ApplicationMember, chosen: Sequence[PlannedMember]) -> PlannedMember:
    """Return the plan of partitions of ``member`` that run at once, of a plan of each."""
    plans = [item.plan for item in chosen]
    # Each was planned with the disk to itself: all of them read from one.
    reading = sum(_reading_seconds(plan, member.profile) for plan in plans)
    slowest = max(item.seconds for item in chosen)
    return PlannedMember(joined(member.program, member.cuts, plans), max(slowest, reading))


def _reading_seconds(plan: Plan, profile: Profile | None) -> float:
    """Return how long the disk is busy with all that a sweep of ``plan`` reads."""
    if profile is None:
        return plan.read_bytes / READ_BYTES_A_SECOND
    depth = plan.choice.depth
    return sum(profile.read_seconds(group.read_bytes, depth) for group in plan.groups) / depth
