"""Plans that were found. Searching takes seconds, and a restart or another command asks for the same."""

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from pipeline.planning.plan import Choice

#: Version of the planner: plans of another version are not used. It grows with each change of its choices.
PLANNER_VERSION = 14
# A model is served in a few budgets, and a frontier has at most 41 plans.
MOST_PLANS = 64


def canonical(question: Mapping[str, Any]) -> str:
    """Return JSON that is the same for the same question, whatever wrote it."""
    return json.dumps(question, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class Point:
    """A ring of ``ring_bytes`` (each, where there are two), all weight memory, and the delay it gives."""

    ring_bytes: int
    weight_bytes: int
    delay_seconds: float


@dataclass(frozen=True)
class FoundPlan:
    """What a search chose. ``reasons``: in words. ``curve``: of the search for a ring.

    ``thorough``: the search took its time; nothing better is found by a quick one. ``total_bytes``: of its
    plan.
    """

    choice: Choice
    reasons: tuple[str, ...] = ()
    curve: tuple[Point, ...] = ()
    thorough: bool = False
    total_bytes: int = 0


class PlanStore(Protocol):
    """Where known plans outlive the process. Neither method fails: what is lost is searched again."""

    def load(self, level: int = logging.WARNING) -> dict[str, FoundPlan]:
        """Return the plans by what was asked for, the newest last; ``level``: of why there are none."""

    def save(self, plans: Mapping[str, FoundPlan]) -> bool:
        """Replace what is there; return whether that could be written."""


class FoundPlans:
    """The last plans, by what was asked for; in memory until they are saved. Thread-safe."""

    def __init__(self, plans: Mapping[str, FoundPlan] = MappingProxyType({})) -> None:
        self._changing = threading.Lock()
        self._plans = dict(plans)
        self._store: PlanStore | None = None
        self._saved = True

    def all(self) -> dict[str, FoundPlan]:
        """Return the plans by what was requested, the oldest first."""
        return dict(self._plans)

    def take(self, others: "FoundPlans") -> None:
        """Keep what is in ``others``, and not here or found by a quicker search."""
        for question, known in others._plans.items():
            mine = self._plans.get(question)
            if mine is None or known.thorough > mine.thorough:
                self.add(question, known)

    def keep_in(self, store: PlanStore) -> None:
        """Use what is in ``store``, and save there."""
        self._plans.update(store.load())
        self._store = store

    def get(self, question: str) -> FoundPlan | None:
        """Return what was found; None: it was not asked."""
        return self._plans.get(question)

    def add(self, question: str, known: FoundPlan) -> None:
        """Keep ``known`` in memory; the oldest is forgotten."""
        with self._changing:
            self._plans.pop(question, None)
            self._plans[question] = known
            self._forget()
            self._saved = False

    def save(self) -> bool:
        """Write to the store what is new; return whether another process finds all of it there.

        What another process has written meanwhile stays, and counts here from now on.
        """
        with self._changing:
            if self._store is not None and not self._saved:
                there = self._store.load(logging.DEBUG)
                mine = {
                    question: known
                    for question, known in self._plans.items()
                    if question not in there or known.thorough >= there[question].thorough
                }
                self._plans = {**{key: there[key] for key in there if key not in mine}, **mine}
                self._forget()
                self._saved = self._store.save(self._plans)
            return self._store is not None and self._saved

    def _forget(self) -> None:
        while len(self._plans) > MOST_PLANS:
            del self._plans[next(iter(self._plans))]
