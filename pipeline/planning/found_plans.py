"""Plans, and what may run on rows in them, that were found before: a restart or another command asks again.

Searching takes seconds.
"""

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from pipeline.planning.plan import Choice
from pipeline.planning.row_variant import Variants

#: Version of the planner: plans of another version are not used. It grows with each change of its choices.
PLANNER_VERSION = 17
# A model is served in a few budgets, and a frontier has at most 41 plans.
MOST_PLANS = 64
# With other numbers of threads, and for the arena alone.
MAX_VARIANTS = 8


_Cached = TypeVar("_Cached")


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

    ``total_bytes``: of its plan. ``enough_bytes``: within so many, or any more, the same is found; None:
    not known.
    """

    choice: Choice
    reasons: tuple[str, ...] = ()
    curve: tuple[Point, ...] = ()
    total_bytes: int = 0
    enough_bytes: int | None = None


@dataclass(frozen=True)
class StoredPlans:
    """What outlives a process: ``plans`` and ``variants``, each by what was requested, the newest last."""

    plans: Mapping[str, FoundPlan] = field(default_factory=dict)
    variants: Mapping[str, Variants] = field(default_factory=dict)


class PlanStore(Protocol):
    """Where known plans outlive the process. Neither method fails: what is lost is searched again."""

    def load(self, level: int = logging.WARNING) -> StoredPlans:
        """Return what is there; ``level``: of why there is nothing."""

    def save(self, stored: StoredPlans) -> bool:
        """Replace what is there; return whether that could be written."""


class FoundPlans:
    """The last plans and variants, by what was requested; in memory until they are saved. Thread-safe."""

    def __init__(self, stored: StoredPlans = StoredPlans()) -> None:
        self._changing = threading.Lock()
        self._plans = dict(stored.plans)
        self._variants = dict(stored.variants)
        self._store: PlanStore | None = None
        self._saved = True

    def all(self) -> StoredPlans:
        """Return what there is, the oldest first."""
        return StoredPlans(dict(self._plans), dict(self._variants))

    def take(self, others: "FoundPlans") -> None:
        """Keep what is in ``others``, and not here."""
        for question, known in others._plans.items():
            if question not in self._plans:
                self.add(question, known)
        for question, variants in others._variants.items():
            if question not in self._variants:
                self.add_variants(question, variants)

    def keep_in(self, store: PlanStore) -> None:
        """Use what is in ``store``, and save there."""
        stored = store.load()
        self._plans.update(stored.plans)
        self._variants.update(stored.variants)
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

    def variants(self, question: str) -> Variants | None:
        """Return what may run on rows, as it was found; None: it was not requested."""
        return self._variants.get(question)

    def add_variants(self, question: str, variants: Variants) -> None:
        """Keep ``variants`` in memory; the oldest are forgotten."""
        with self._changing:
            self._variants.pop(question, None)
            self._variants[question] = variants
            self._forget()
            self._saved = False

    @property
    def is_saved(self) -> bool:
        """Whether ``save`` has nothing to write."""
        return self._saved

    def save(self) -> bool:
        """Write to the store what is new; return whether another process finds all of it there.

        What another process has written meanwhile stays, and counts here from now on.
        """
        with self._changing:
            if self._store is not None and not self._saved:
                there = self._store.load(logging.DEBUG)
                self._plans = _together(there.plans, self._plans)
                self._variants = _together(there.variants, self._variants)
                self._forget()
                self._saved = self._store.save(StoredPlans(self._plans, self._variants))
            return self._store is not None and self._saved

    def _forget(self) -> None:
        while len(self._plans) > MOST_PLANS:
            del self._plans[next(iter(self._plans))]
        while len(self._variants) > MAX_VARIANTS:
            del self._variants[next(iter(self._variants))]


def _together(before: Mapping[str, _Cached], now: Mapping[str, _Cached]) -> dict[str, _Cached]:
    """Return what was there ``before``, older than what is ``now``."""
    return {**{key: kept for key, kept in before.items() if key not in now}, **now}
