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
_MAX_TRIES = 4

#: Returns the best plan of a shape, by its index, within so many bytes, or its smallest one.
Fit = Callable[[int, int], PlanResult | None]


@dataclass(frozen=True)
class ShapesFitter:
    """Plans for the shapes ``programs``, the largest first, whose smallest plans are ``minima``."""

    programs: Sequence[Program]
    minima: Sequence[Plan]

    @cached_property
    def smallest(self) -> Plan:
        """The smallest plan of all shapes."""
        return together(self.programs, self.minima)

    def within(self, n_bytes: int, fit: Fit) -> PlanResult | None:
        """Return the plan of all shapes within ``n_bytes``; None where ``fit`` gives none.

        A smaller shape gets what the larger ones leave: as much as they, less what it would keep of other
        weights, or in a larger ring, than they.
        """
        smallest = self.smallest
        limit, first = n_bytes, None
        for _ in range(_MAX_TRIES):
            plans = list(self.minima)
            for index in range(len(plans)):
                shape_result = self._plan_of(
                    index, plans, n_bytes, limit if index == 0 else n_bytes, fit
                )
                if shape_result is None:
                    return None
                plans[index] = shape_result.plan
                first = shape_result if index == 0 else first
            planned = together(self.programs, plans)
            excess = planned.total_bytes - n_bytes
            if excess <= 0 or planned.total_bytes <= smallest.total_bytes:
                assert first is not None
                return replace(first, plan=planned, enough_bytes=None)
            limit -= excess
        assert first is not None
        return replace(first, plan=smallest, prediction=None, enough_bytes=None)

    def _plan_of(
        self, index: int, plans: Sequence[Plan], n_bytes: int, limit: int, fit: Fit
    ) -> EnginePlanResult | None:
        """Return the plan of shape ``index`` that fits with ``plans`` of the others in ``n_bytes``."""
        minimum = self.minima[index]
        tries = 0
        while True:
            result, tries = fit(index, limit), tries + 1
            if result is None:
                return None
            shape_result = of_one_engine(result)
            shape_result = replace(
                shape_result, plan=without_ahead(self.programs[index], shape_result.plan)
            )
            candidates = [*plans[:index], shape_result.plan, *plans[index + 1 :]]
            excess = together(self.programs, candidates).total_bytes - n_bytes
            if excess <= 0 or shape_result.plan.total_bytes <= minimum.total_bytes:
                return shape_result
            if tries == _MAX_TRIES:
                return replace(shape_result, plan=minimum, prediction=None)
            limit = min(limit, shape_result.plan.total_bytes) - excess
