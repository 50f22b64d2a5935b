"""What became of requests and where their time went: counted often, looked at only by a scrape.

Plain numbers, since all of it happens on the event loop.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import (
    CounterMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

OUTCOMES = ("ok", "invalid", "busy", "late", "deadline", "cancelled", "failed")
STAGES = ("queue", "read", "copy", "kernel", "stall", "preprocess")

_DELAY_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5),
    *(0.75, 1.0, 2.0, 5.0, 10.0, 30.0),
)
_BOUNDS = [*map(floatToGoString, _DELAY_BUCKETS), "+Inf"]


@dataclass
class _Figures:
    """Of one model; ``delays``: how many were answered within each bound, and not within the one before.

    ``stages``: how many there were of each, and their seconds.
    """

    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    delays: list[int] = field(default_factory=lambda: [0] * len(_BOUNDS))
    delay_seconds: float = 0.0
    stages: dict[str, list[float]] = field(
        default_factory=lambda: {stage: [0, 0.0] for stage in STAGES}
    )
    read_bytes: int = 0


class RequestCollector(Collector):
    """Counts requests by model."""

    def __init__(self) -> None:
        self._models = defaultdict[str, _Figures](_Figures)

    def expect(self, model: str) -> None:
        """Have the series of ``model`` there from now on, before its first request: rates start at 0."""
        self._models[model]  # made where there is none

    def end(self, model: str, outcome: str, seconds: float) -> None:
        """Count one request; ``outcome`` is one of OUTCOMES.

        Only answers count as delays: quick refusals under load would make them look better.
        """
        figures = self._models[model]
        figures.outcomes[outcome] += 1
        if outcome == "ok":
            figures.delays[bisect_left(_DELAY_BUCKETS, seconds)] += 1
            figures.delay_seconds += seconds

    def add(self, model: str, seconds: Iterable[tuple[str, float]], read_bytes: int = 0) -> None:
        """Add one request's ``seconds`` by stage, and what was read of the disk for it."""
        figures = self._models[model]
        figures.read_bytes += read_bytes
        for stage, more in seconds:
            stages = figures.stages[stage]
            stages[0] += 1
            stages[1] += more

    def collect(self) -> Iterator[Metric]:
        """Yield all; stages as summaries: a histogram would be twenty series of every model and stage."""
        requests = CounterMetricFamily(
            "layerstream_requests", "Requests by outcome", labels=["model", "outcome"]
        )
        delays = HistogramMetricFamily(
            "layerstream_request_seconds",
            "Delay of an answered request, end to end",
            labels=["model"],
        )
        stages = SummaryMetricFamily(
            "layerstream_stage_seconds",
            "Time of requests by stage; read sums over reads, which overlap",
            labels=["model", "stage"],
        )
        read = CounterMetricFamily(
            "layerstream_read_bytes", "Weight bytes read from the disk", labels=["model"]
        )
        for model, figures in self._models.items():
            for outcome, ended in figures.outcomes.items():
                requests.add_metric([model, outcome], ended)
            so_far = [sum(figures.delays[: index + 1]) for index in range(len(_BOUNDS))]
            buckets = list(zip(_BOUNDS, so_far, strict=True))
            delays.add_metric([model], buckets, figures.delay_seconds)
            for stage, (count, total) in figures.stages.items():
                stages.add_metric([model, stage], int(count), total)
            read.add_metric([model], figures.read_bytes)
        yield from (requests, delays, stages, read)
