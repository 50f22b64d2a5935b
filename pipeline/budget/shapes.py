"""A model in several shapes as one of a set that shares a budget: a plan for each shape, in one memory.

Each shape is planned as a model of one shape is, within what the others leave of the budget.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pipeline.fitting.wanted import EnginePlanResult, PlanResult, of_one_engine
from pipeline.planning.plan import Plan
from pipeline.planning.shapes import together, without_ahead
from pipeline.program.program import Program

# A plan that takes too much beside those of other shapes is made again for less so often.
_MOST_TRIES = 4

#: Returns the best plan of a shape, by its number, within so many bytes, or its smallest one.
Fit = Callable[[int, int], PlanResult | None]


@dataclass(frozen=True)
class ShapesFitter:
    """Plans for the shapes ``programs``, the largest first, whose smallest plans are ``least``."""

    programs: Sequence[Program]
    least: Sequence[Plan]

    @cached_property
    def smallest(self) -> Plan:
        """The smallest plan of all shapes."""
        return together(self.programs, self.least)

    def within(self, n_bytes: int, fit: Fit) -> PlanResult | None:
        """Return the plan of all shapes within ``n_bytes``; None where ``fit`` gives none.

        A smaller shape gets what the larger ones leave: as much as they, less what it would keep of other
        weights, or in a larger ring, than they.
        """
        least = self.smallest
        rooms, fitted = n_bytes, None
        for _ in range(_MOST_TRIES):
            plans = list(self.least)
            for number in range(len(plans)):
                found = self._fitted(number, plans, n_bytes, rooms if number == 0 else n_bytes, fit)
                if found is None:
                    return None
                plans[number] = found.plan
                fitted = found if number == 0 else fitted
            planned = together(self.programs, plans)
            excess = planned.total_bytes - n_bytes
            if excess <= 0 or planned.total_bytes <= least.total_bytes:
                assert fitted is not None
                return replace(fitted, plan=planned, enough_bytes=None)
            rooms -= excess
        assert fitted is not None
        return replace(fitted, plan=least, prediction=None, enough_bytes=None)

    def _fitted(
        self, number: int, plans: Sequence[Plan], n_bytes: int, room: int, fit: Fit
    ) -> EnginePlanResult | None:
        """Return the plan of shape ``number`` that fits beside ``plans`` of the others in ``n_bytes``."""
        least = self.least[number]
        tries = 0
        while True:
            result, tries = fit(number, room), tries + 1
            if result is None:
                return None
            found = of_one_engine(result)
            found = replace(found, plan=without_ahead(self.programs[number], found.plan))
            beside = [*plans[:number], found.plan, *plans[number + 1 :]]
            excess = together(self.programs, beside).total_bytes - n_bytes
            if excess <= 0 or found.plan.total_bytes <= least.total_bytes:
                return found
            if tries == _MOST_TRIES:
                return replace(found, plan=least, prediction=None)
            room = min(room, found.plan.total_bytes) - excess
