"""A plan that fails, cut down: fewer operations and faults first, then fewer choices of threads.

Delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002): halves,
quarters and so on are left out, as long as what is left fails in the same way.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.simulation.plan import Operation, Plan

T = TypeVar("T")

#: What a plan breaks, and the choices of drawn of its processes; "": nothing.
Play = Callable[[Plan], tuple[str, tuple[dict[int, int], ...]]]


def shrunk(plan: Plan, play: Play, tries: int = 600) -> Plan:
    """Return a smaller plan that fails as ``plan`` does; at most so many ``tries`` are played.

    With fewer operations the same choices come elsewhere: the plan is tried with those that were noted, and
    with new ones of its seed, which are noted in turn.
    """
    broken, noted = play(plan)
    kind = _kind(broken)
    left = tries

    def fails(candidate: Plan) -> bool:
        nonlocal left, noted
        left -= 1
        if left < 0:
            return False
        broken, choices = play(candidate)
        if _kind(broken) != kind:
            return False
        noted = choices
        return True

    def fails_somehow(candidate: Plan) -> bool:
        return fails(candidate.with_choices(noted)) or fails(candidate.with_choices(None))

    fails_somehow(plan)
    plan = plan.with_operations(
        _fewest(plan.operations, lambda some: fails_somehow(plan.with_operations(some)))
    )
    plan = plan.with_faults(
        _fewest(plan.faults, lambda some: fails_somehow(plan.with_faults(some)))
    )
    plan = _simplified(plan, fails_somehow)
    plan = plan.with_choices(noted)
    choices = [(process, index) for process, drawn in enumerate(noted) for index in drawn]
    choices_of = [dict(drawn) for drawn in noted]

    def with_some(some: Sequence[tuple[int, int]]) -> Plan:
        chosen: list[dict[int, int]] = [{} for _ in choices_of]
        for process, index in some:
            chosen[process][index] = choices_of[process][index]
        return plan.with_choices(chosen)

    return with_some(_fewest(choices, lambda some: fails(with_some(some))))


def _simplified(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """Return ``plan`` with operations that have as little of their own as possible."""
    for index in range(len(plan.operations)):
        operation = plan.operations[index]
        usual = Operation(operation.start, operation.kind, operation.model)
        for name in (
            "read_delay",
            "padding",
            "pause",
            "piece",
            "count",
            "leaves",
            "priority",
            "address",
        ):
            simpler = replace(operation, **{name: getattr(usual, name)})
            operations = [*plan.operations]
            operations[index] = simpler
            if simpler != operation and fails(plan.with_operations(operations)):
                plan, operation = plan.with_operations(operations), simpler
    return plan


def _kind(broken: str) -> str:
    """Return what two failures have in common: the last line, less its numbers."""
    last = broken.strip().rpartition("\n")[2]
    return "".join(item for item in last.partition("Operation(")[0] if not item.isdigit())


def _fewest(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Return some of ``items`` with which it still fails, of which none can be left out alone."""
    size = max(len(items) // 2, 1)
    while items:
        start, is_smaller = 0, False
        while start < len(items):
            fewer = [*items[:start], *items[start + size :]]
            if fails(fewer):
                items, is_smaller = fewer, True
            else:
                start += size
        if size == 1 and not is_smaller:
            break
        size = max(size // 2, 1)
    return items
