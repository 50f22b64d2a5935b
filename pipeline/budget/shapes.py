"""A model in several shapes as one of a set that shares a budget: a plan for each shape, in one memory.

Each shape is planned as a model of one shape is, within what the others leave of the budget.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from loader.errors import LoaderError
from pipeline.fitting.judge import judged
from pipeline.fitting.predicting import Predictions
from pipeline.fitting.wanted import EnginePlanResult, PlanResult, of_one_engine
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Plan, PlanError
from pipeline.planning.shapes import together
from pipeline.profiles.profile import Profile
from pipeline.program.program import Program
from pipeline.program.region_plan import RegionError

# A plan that takes too much beside those of other shapes is made again for less so often.
_MAX_TRIES = 4

#: Returns the best plan of a shape, by its index, within so many bytes, or its smallest one.
Fit = Callable[[int, int], PlanResult | None]


@dataclass(frozen=True)
class ShapesFitter:
    """Plans for the shapes ``programs``, the largest first, whose smallest plans are ``minima``.

    ``profiles``: of each.
    """

    programs: Sequence[Program]
    minima: Sequence[Plan]
    profiles: Sequence[Profile | None]

    @cached_property
    def smallest(self) -> Plan:
        """The smallest plan of all shapes."""
        return together(self.programs, self.minima)

    def within(self, n_bytes: int, fit: Fit) -> PlanResult | None:
        """Return the plan of all shapes within ``n_bytes``; None where ``fit`` gives none.

        The larger a shape, the longer it computes, and the less it gains by weights that stay in memory. So
        those that the smallest shape would have there are tried for all, and what the largest would have.
        """
        results = self._largest_first(n_bytes, fit)
        if results is None:
            return None
        plans = [result.plan for result in results]
        if any(plan.reads for plan in plans):
            others = self._smallest_first(plans, n_bytes, fit)
            if others is not None and self._slowdown(others, plans) < self._slowdown(plans, others):
                plans = others
        first = judged(self.programs[0], plans[0], self.profiles[0], results[0].reasons)
        return replace(
            first,
            plan=together(self.programs, plans),
            heuristic=any(result.heuristic for result in results),
            complete=all(result.complete for result in results),
        )

    def _largest_first(self, n_bytes: int, fit: Fit) -> list[EnginePlanResult] | None:
        """Return a plan for each shape: a smaller one has what the larger ones leave.

        That is as much as they, less what it would keep of other weights, or in a larger ring, than they.
        """
        limit = n_bytes
        results: list[EnginePlanResult] = []
        for _ in range(_MAX_TRIES):
            results = []
            for index in range(len(self.programs)):
                plans = [*(result.plan for result in results), *self.minima[index:]]
                result = self._plan_of(index, plans, n_bytes, n_bytes if index else limit, fit)
                if result is None:
                    return None
                results.append(result)
            planned = together(self.programs, [result.plan for result in results])
            excess = planned.total_bytes - n_bytes
            if excess <= 0 or planned.total_bytes <= self.smallest.total_bytes:
                return results
            limit -= excess
        return [
            EnginePlanResult(plan, None, result.reasons)
            for plan, result in zip(self.minima, results, strict=True)
        ]

    def _smallest_first(self, plans: Sequence[Plan], n_bytes: int, fit: Fit) -> list[Plan] | None:
        """Return ``plans`` with the weights in memory that the smallest shape would have there.

        None: they do not fit so.
        """
        last = len(plans) - 1
        try:
            streamed = [self._with_weights(index, plan, None) for index, plan in enumerate(plans)]
            result = self._plan_of(last, streamed, n_bytes, n_bytes, fit)
            if result is None:
                return None
            others = [
                self._with_weights(index, plan, result.plan)
                for index, plan in enumerate(plans[:last])
            ]
        except (PlanError, RegionError, LoaderError):
            return None
        changed = [*others, result.plan]
        fits = together(self.programs, changed).total_bytes <= n_bytes
        return changed if fits else None

    def _with_weights(self, index: int, plan: Plan, model: Plan | None) -> Plan:
        """Return ``plan`` of shape ``index`` with the weights of ``model``, the last shape's, in memory.

        None: with as little memory for weights as it takes.

        Raises:
            PlanError, RegionError, LoaderError: it cannot be.
        """
        choice = replace(plan.choice, ring_bytes=None, resident=())
        if model is not None:
            spans = self.programs[-1].spans
            stored = {(spans[span].file_offset, spans[span].length) for span in model.resident}
            choice = replace(
                choice,
                ring_bytes=model.choice.ring_bytes,
                read_bytes=model.choice.read_bytes,
                chunk_bytes=model.choice.chunk_bytes,
                depth=model.choice.depth,
                resident=tuple(
                    span_index
                    for span_index, span in enumerate(self.programs[index].spans)
                    if (span.file_offset, span.length) in stored
                ),
            )
        return make_plan(self.programs[index], plan.architecture, choice=choice)

    def _slowdown(self, plans: Sequence[Plan], others: Sequence[Plan]) -> float:
        """Return by how much ``plans`` are expected to be slower than ``others``, summed over shapes."""
        total = 0.0
        for program, profile, plan, other in zip(
            self.programs, self.profiles, plans, others, strict=True
        ):
            predictions = Predictions.of(program, profile)
            seconds, reference = predictions.seconds(plan), predictions.seconds(other)
            total += max(seconds / reference - 1, 0.0) if reference else 0.0
        return total

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
            candidates = [*plans[:index], shape_result.plan, *plans[index + 1 :]]
            excess = together(self.programs, candidates).total_bytes - n_bytes
            if excess <= 0 or shape_result.plan.total_bytes <= minimum.total_bytes:
                return shape_result
            if tries == _MAX_TRIES:
                return replace(shape_result, plan=minimum, prediction=None)
            limit = min(limit, shape_result.plan.total_bytes) - excess
