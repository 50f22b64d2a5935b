"""Models that are made of numbers: plans that take what they are allowed, between a least and a most."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

from pipeline.fitting.wanted import Fitted
from pipeline.planning.plan import Plan
from server.memory.sharing import Sharer


def fitted(memory: Mapping[str, int], by_thumb: bool = False) -> Fitted:
    chosen = SimpleNamespace(**memory)
    plan = SimpleNamespace(
        memory=dict(memory), total_bytes=sum(memory.values()), architecture="", choice=chosen
    )
    return Fitted(cast("Plan", plan), by_thumb=by_thumb)


def numbers(name: str, least: Mapping[str, int], ring: int = 0, arena: int = 0) -> Sharer:
    """A model that would have up to ``ring`` bytes more of weights, and before that a larger arena."""

    def within(n_bytes: int) -> Fitted:
        rest = max(n_bytes - sum(least.values()), 0)
        wide = arena if rest >= arena else 0
        more = min(ring, rest - wide)
        grown = {"ring": least.get("ring", 0) + more, "arena": least.get("arena", 0) + wide}
        return fitted({**least, **grown})

    return Sharer(name, least, within)
