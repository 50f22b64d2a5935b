"""A plan that fails, cut down: fewer operations and faults first, then fewer choices of threads.

Delta debugging (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002): halves,
quarters and so on are left out, as long as what is left fails in the same way.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from tests.simulation.plan import Plan

T = TypeVar("T")

#: What a plan breaks, and the choices that it took; "": nothing.
Play = Callable[[Plan], tuple[str, dict[int, int]]]


def shrunk(plan: Plan, play: Play, tries: int = 300) -> Plan:
    """Return a smaller plan that fails as ``plan`` does; at most so many ``tries`` are played."""
    broken, choices = play(plan)
    kind = _kind(broken)
    left = tries

    def fails(candidate: Plan) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and _kind(play(candidate)[0]) == kind

    if fails(plan.with_choices(choices)):
        plan = plan.with_choices(choices)
    plan = plan.with_operations(
        _fewest(plan.operations, lambda some: fails(plan.with_operations(some)))
    )
    plan = plan.with_faults(_fewest(plan.faults, lambda some: fails(plan.with_faults(some))))
    if plan.choices:
        drawn = plan.choices
        smaller = _fewest(
            [*drawn], lambda some: fails(plan.with_choices({item: drawn[item] for item in some}))
        )
        plan = plan.with_choices({item: drawn[item] for item in smaller})
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
