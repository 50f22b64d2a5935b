"""Where the time of a sweep goes: each region, each layer, as measured, as predicted, and in ``pre``.

Measured and predicted times are read off traces in the same way: what a step took from when it could begin,
and for how long it waited for weights before. The time of a launch of several steps is divided among them
as they are estimated.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from pipeline.planning.estimates import Estimates
from pipeline.planning.explain import region_words
from pipeline.planning.plan import Plan
from pipeline.program.program import Program
from pipeline.program.steps import first_pieces
from pipeline.schedule.trace import TraceEvent
from pipeline.timing.durations import STALL_SECONDS, launched, services
from pipeline.timing.timeline import trace

Trace = Sequence[TraceEvent]


@dataclass(frozen=True)
class Share:
    """What ``part`` of a network, its finest ``pieces``, took in how many ``launches``; milliseconds.

    ``waited_ms``: for weights. ``predicted_ms``: of kernels. ``pre_ms``: of the same pieces in ``pre``.
    """

    part: str
    pieces: range
    launches: int
    kernel_ms: float
    waited_ms: float
    predicted_ms: float
    pre_ms: float

    def as_dict(self) -> dict[str, Any]:
        """Return the keys of ``bench pipeline --explain --json``."""
        return {**asdict(self), "pieces": [self.pieces.start, self.pieces.stop]}


@dataclass(frozen=True)
class Traced:
    """A plan and the traces of some of its sweeps."""

    plan: Plan
    sweeps: Sequence[Trace]


def estimated_pass(plan: Plan, estimates: Estimates) -> Trace:
    """Return the trace of the pass that is estimated after an idle moment."""
    return list(trace(plan.stages, estimates.sweep(plan), plan.stages[0].ahead))


def account(traced: Traced, pre: Traced, estimates: Estimates) -> list[Share]:
    """Return the shares of all parts of a network, in order; medians of the sweeps."""
    parts = _parts(estimates.program, traced.plan)
    measured = [_times(traced.plan, parts, sweep, estimates) for sweep in traced.sweeps]
    whole = [_times(pre.plan, parts, sweep, estimates) for sweep in pre.sweeps]
    predicted = estimated_pass(traced.plan, estimates)
    expected = _times(traced.plan, parts, predicted, estimates)
    return [
        Share(
            part=name,
            pieces=pieces,
            launches=measured[0][pieces].launches,
            kernel_ms=1e3 * median(sweep[pieces].kernel for sweep in measured),
            waited_ms=1e3 * median(sweep[pieces].waited for sweep in measured),
            predicted_ms=1e3 * expected[pieces].kernel,
            pre_ms=1e3 * median(sweep[pieces].kernel for sweep in whole),
        )
        for pieces, name in parts.items()
    ]


def _parts(program: Program, plan: Plan) -> dict[range, str]:
    """Return the regions of ``plan`` and the layers outside of them, by their pieces in order."""
    words = {
        range(each.first_piece, each.end_piece): region_words(program, each)
        for each in plan.choice.regions
    }
    inside = {piece for pieces in words for piece in pieces}
    for layer in program.layers:
        if layer.first_piece < layer.end_piece and layer.first_piece not in inside:
            words[range(layer.first_piece, layer.end_piece)] = layer.name
    return {pieces: words[pieces] for pieces in sorted(words, key=lambda item: item.start)}


@dataclass
class _Times:
    """Seconds of a part in one sweep."""

    kernel: float = 0.0
    waited: float = 0.0
    launches: int = 0


def _times(
    plan: Plan, parts: Mapping[range, str], events: Trace, estimates: Estimates
) -> dict[range, _Times]:
    """Return what each of ``parts`` took in the sweep of ``plan`` that ``events`` tell of."""
    of_piece = {piece: pieces for pieces in parts for piece in pieces}
    times: defaultdict[range, _Times] = defaultdict(_Times)
    first = list(first_pieces(estimates.program, plan.steps))
    alone = list(estimates.kernels(plan))
    served = services(plan.stages, events, plan.choice.depth)[-1]
    end = 0.0
    for run, service in launched(served, plan.runs):
        if service is None:
            continue
        part = times[of_piece[first[run.start]]]
        part.launches += 1
        waited = service.start - end
        part.waited += waited if waited > STALL_SECONDS else 0.0
        for step, seconds in _divided(run, service.seconds, alone):
            times[of_piece[first[step]]].kernel += seconds
        end = service.end
    return times


def _divided(run: range, seconds: float, alone: Sequence[float]) -> Iterator[tuple[int, float]]:
    """Yield what each step of a launch takes of its ``seconds``, in proportion to times ``alone``."""
    total = sum(alone[step] for step in run) or 1.0
    for step in run:
        yield step, seconds * alone[step] / total
