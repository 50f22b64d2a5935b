"""The question of planning, limits on memory and time, and its answer: a plan with its expected times.

Bytes and seconds; None: not asked, or not known.
"""

from dataclasses import dataclass

from pipeline.planning.found_plans import Point
from pipeline.planning.plan import AnyPlan, InvalidPlanError, Plan


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the user asks of a plan. The fastest that fits is chosen.

    ``total_bytes``: limit of everything that it takes. ``weight_bytes``: limit of its memory for weights.
    ``arena_bytes``: limit of what activations take: arena, scratch, tensors. ``ring_bytes``: of each ring;
    then there is nothing to search. ``delay_seconds``: of a request; as little memory as reaches it.
    ``guaranteed``: by a bound, of a plan whose limits were measured. ``least``: the smallest plan, however
    slow.

    Parts of the network run on rows where all memory is limited, or that of activations, or the time; a
    limit of weights alone is about how they stream, and leaves the network whole.
    """

    total_bytes: int | None = None
    weight_bytes: int | None = None
    arena_bytes: int | None = None
    ring_bytes: int | None = None
    delay_seconds: float | None = None
    guaranteed: bool = False
    least: bool = False


NOTHING = Wanted()
LEAST = Wanted(least=True)


@dataclass(frozen=True)
class DelayPrediction:
    """What a profile says of requests after an idle moment, when the head of the weights has been read.

    ``sweep_seconds`` and ``sweep_bound_seconds`` of the sweep, ``outside_seconds`` and
    ``longest_outside_seconds`` of all else in a request. ``stall_seconds``: kernels wait for weights.
    ``measured``: in passes of this very plan, in turns with those of ``pre``; else it is estimated. There
    is a bound where the limits of the plan were measured.
    """

    sweep_seconds: float
    stall_seconds: float
    outside_seconds: float
    sweep_bound_seconds: float | None
    longest_outside_seconds: float
    measured: bool = False

    @property
    def delay_seconds(self) -> float:
        """Of a request."""
        return self.sweep_seconds + self.outside_seconds

    @property
    def bound_seconds(self) -> float | None:
        """Of a request."""
        bound = self.sweep_bound_seconds
        return None if bound is None else bound + self.longest_outside_seconds

    @property
    def delay_ms(self) -> float:
        return self.delay_seconds * 1e3

    @property
    def stall_ms(self) -> float:
        return self.stall_seconds * 1e3

    @property
    def bound_ms(self) -> float | None:
        return None if self.bound_seconds is None else self.bound_seconds * 1e3


@dataclass(frozen=True)
class PlanResult:
    """A plan, of one engine or of partitions. ``reasons``: in words, why it is as it is.

    ``curve``: of the search for its ring. ``prediction``: None without a profile. ``heuristic``: nothing
    was searched for; there may be a better one. ``complete``: no clock ended the search; else another one
    may find a better plan, so this one is not kept. ``enough_bytes``: within so many bytes, or any more,
    the same is found; None: not known. ``limit_bytes``: what it was planned within, as one of a set that
    shares a budget.
    """

    plan: AnyPlan
    prediction: DelayPrediction | None = None
    reasons: tuple[str, ...] = ()
    curve: tuple[Point, ...] = ()
    heuristic: bool = False
    complete: bool = True
    enough_bytes: int | None = None
    limit_bytes: int | None = None

    @property
    def predicted_seconds(self) -> float | None:
        """Of a sweep."""
        return None if self.prediction is None else self.prediction.sweep_seconds

    @property
    def bound_seconds(self) -> float | None:
        """Of a sweep."""
        return None if self.prediction is None else self.prediction.sweep_bound_seconds


@dataclass(frozen=True)
class EnginePlanResult(PlanResult):
    """A plan of one engine."""

    plan: Plan


def of_one_engine(result: PlanResult) -> EnginePlanResult:
    """Return ``result``, which was planned for one engine.

    Raises:
        InvalidPlanError: it is of partitions.
    """
    if not isinstance(result, EnginePlanResult):
        raise InvalidPlanError("a plan of partitions, where one engine runs")
    return result
