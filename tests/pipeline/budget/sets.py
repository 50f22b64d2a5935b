"""Models that are made of numbers: plans that take what they are allowed, between a least and a most."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

from pipeline.budget.sharing import Sharer
from pipeline.fitting.wanted import EnginePlanResult
from pipeline.planning.plan import Plan


def fitted(memory: Mapping[str, int], heuristic: bool = False) -> EnginePlanResult:
    chosen = SimpleNamespace(**memory)
    plan = SimpleNamespace(
        memory=dict(memory), total_bytes=sum(memory.values()), architecture="", choice=chosen
    )
    return EnginePlanResult(cast("Plan", plan), heuristic=heuristic)


def numbers(name: str, least: Mapping[str, int], ring: int = 0, arena: int = 0) -> Sharer:
    """A model that would have up to ``ring`` bytes more of weights, and before that a larger arena."""

    def within(n_bytes: int) -> EnginePlanResult:
        rest = max(n_bytes - sum(least.values()), 0)
        wide = arena if rest >= arena else 0
        more = min(ring, rest - wide)
        grown = {"ring": least.get("ring", 0) + more, "arena": least.get("arena", 0) + wide}
        return fitted({**least, **grown})

    return Sharer(name, least, within)
