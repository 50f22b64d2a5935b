"""What requests are counted in, ours and Triton's, one after the other: plain sums, read by a scrape."""

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from prometheus_client.core import (
    CounterMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.utils import floatToGoString

from pipeline.execution.statistics import SweepStatistics
from server.faults import REASONS, Outcome
from server.operation.tracing import current

# Triton's counters of each version of a model.

_NANOSECONDS = 1_000_000_000
# Versions of one model that are kept: with more of them the oldest are dropped.
_MOST_VERSIONS = 8


class Passage(NamedTuple):
    """Where the seconds of an answered request went; what the client took is nowhere among them.

    ``lanes``: how many requests its sweep carried.
    """

    queue: float
    compute_input: float
    compute_infer: float
    compute_output: float
    lanes: int = 1


#: Of a request that was answered without a sweep.
_NOTHING = Passage(0.0, 0.0, 0.0, 0.0)


def _duration(count: int, ns: int) -> dict[str, int]:
    """Return what the extension calls a duration: how often, and nanoseconds in all."""
    return {"count": count, "ns": ns}


@dataclass
class Computed:
    """Requests that were computed, and the nanoseconds of their stages."""

    count: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0

    def __add__(self, other: Self) -> "Computed":
        return Computed(
            self.count + other.count,
            self.input_ns + other.input_ns,
            self.infer_ns + other.infer_ns,
            self.output_ns + other.output_ns,
        )

    def as_dict(self) -> dict[str, dict[str, int]]:
        return {
            "compute_input": _duration(self.count, self.input_ns),
            "compute_infer": _duration(self.count, self.infer_ns),
            "compute_output": _duration(self.count, self.output_ns),
        }


@dataclass
class ModelStatistics:
    """Of one version of a model, since the server started.

    ``failures``: by outcome. ``batches``: by the number of requests that a sweep carried.
    """

    last_inference: int = 0
    failures: Counter[Outcome] = field(default_factory=Counter)
    success_ns: int = 0
    fail_ns: int = 0
    queue_ns: int = 0
    batches: dict[int, Computed] = field(default_factory=dict)

    def add(self, outcome: Outcome, seconds: float, passage: Passage | None) -> None:
        """Count a request of ``seconds``; ``passage``: of one that was answered by an inference."""
        if outcome is not Outcome.OK:
            self.fail_ns += round(seconds * _NANOSECONDS)
            self.failures[outcome] += 1
            return
        passage = passage or _NOTHING
        self.last_inference = time.time_ns() // 1_000_000  # noqa: TID251  a date
        self.success_ns += round(seconds * _NANOSECONDS)
        self.queue_ns += round(passage.queue * _NANOSECONDS)
        batch = self.batches.get(passage.lanes)
        if batch is None:
            batch = self.batches[passage.lanes] = Computed()
        batch.count += 1
        batch.input_ns += round(passage.compute_input * _NANOSECONDS)
        batch.infer_ns += round(passage.compute_infer * _NANOSECONDS)
        batch.output_ns += round(passage.compute_output * _NANOSECONDS)

    @property
    def computed(self) -> Computed:
        """Of all answered requests."""
        return sum(self.batches.values(), Computed())

    @property
    def executions(self) -> int:
        """Sweeps; one of which some requests were answered and others not is counted by parts."""
        return round(sum(batch.count / n for n, batch in self.batches.items()))

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of the extension."""
        computed, never = self.computed, _duration(0, 0)
        return {
            "last_inference": self.last_inference,
            "inference_count": computed.count,
            "execution_count": self.executions,
            "inference_stats": {
                "success": _duration(computed.count, self.success_ns),
                "fail": _duration(self.failures.total(), self.fail_ns),
                "queue": _duration(computed.count, self.queue_ns),
                **computed.as_dict(),
                "cache_hit": never,
                "cache_miss": never,
            },
            "batch_stats": [
                {"batch_size": size, **self.batches[size].as_dict()}
                for size in sorted(self.batches)
            ],
        }


class InferenceStatistics:
    """Of all models, by name and version; used on the event loop alone."""

    def __init__(self) -> None:
        self._models: dict[str, dict[str, ModelStatistics]] = {}

    def of(self, model: str, version: str) -> ModelStatistics:
        """Return those of a model that the repository has."""
        versions = self._models.setdefault(model, {})
        statistics = versions.get(version)
        if statistics is None:
            statistics = versions[version] = ModelStatistics()
            if len(versions) > _MOST_VERSIONS:
                del versions[next(iter(versions))]
        return statistics

    def models(self) -> list[str]:
        """Return their models."""
        return list(self._models)

    def __iter__(self) -> Iterator[tuple[str, str, ModelStatistics]]:
        return self.of_models(self.models())

    def of_models(self, models: Iterable[str]) -> Iterator[tuple[str, str, ModelStatistics]]:
        """Yield model, version and statistics of all versions of ``models``."""
        for model in models:
            for version, statistics in self._models.get(model, {}).items():
                yield model, version, statistics


# Our own: outcomes and times.
#
# Plain numbers, since all of it happens on the event loop.

STAGES = ("queue", "read", "copy", "kernel", "stall", "preprocess")

_DELAY_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5,
    0.75, 1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip
_BOUNDS = [*map(floatToGoString, _DELAY_BUCKETS), "+Inf"]


@dataclass
class _Figures:
    """Of one model; ``delays``: how many were answered within each bound, and not within the one before.

    ``stages``: how many there were of each, and their seconds.
    """

    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    delays: list[int] = field(default_factory=lambda: [0] * len(_BOUNDS))
    delay_seconds: float = 0.0
    stages: dict[str, list[float]] = field(
        default_factory=lambda: {stage: [0, 0.0] for stage in STAGES}
    )
    read_bytes: int = 0
    #: Tokens of texts, and texts of which the model saw a part.
    tokens: int = 0
    cut_texts: int = 0


class RequestMetrics:
    """Counts requests by model."""

    def __init__(self) -> None:
        self._models = defaultdict[str, _Figures](_Figures)
        #: What Triton counts: for its statistics, and for its metrics.
        self.inferences = InferenceStatistics()

    def expect(self, model: str, version: str | None) -> None:
        """Make the outcomes of ``model`` exist before its first request, so that their rates start at 0.

        ``version``: that is loaded, None where none is.
        """
        self._models[model]  # made where there is none
        if version is not None:
            self.inferences.of(model, version)

    def end(
        self,
        model: str,
        version: str,
        outcome: Outcome,
        seconds: float,
        passage: Passage | None = None,
    ) -> None:
        """Count one request of a known model, which took so many seconds.

        Only answers count as delays: quick refusals under load would make them look better.
        """
        figures = self._models[model]
        figures.outcomes[outcome] += 1
        if outcome is Outcome.OK:
            figures.delays[bisect_left(_DELAY_BUCKETS, seconds)] += 1
            figures.delay_seconds += seconds
        self.inferences.of(model, version).add(outcome, seconds, passage)

    def sweep(self, model: str, statistics: SweepStatistics, queue_seconds: float) -> None:
        """Observe the stages of an answered request."""
        if (trace := current.get()) is not None:
            trace.sweep(model, statistics, queue_seconds)
        self._models[model].read_bytes += statistics.read_bytes
        self._add(
            model,
            ("queue", queue_seconds),
            ("read", statistics.read_seconds),
            ("copy", statistics.copy_seconds),
            ("kernel", statistics.kernel_seconds),
            ("stall", statistics.stall_seconds),
        )

    def text(self, model: str, tokens: int, is_cut: bool) -> None:
        """Count a text of so many ``tokens``; ``is_cut``: it has more."""
        figures = self._models[model]
        figures.tokens += tokens
        figures.cut_texts += is_cut

    def preprocess(self, model: str, seconds: float) -> None:
        """Observe how long an image took to become a tensor."""
        self._add(model, ("preprocess", seconds))

    def _add(self, model: str, *seconds: tuple[str, float]) -> None:
        """Add one request's ``seconds`` by stage."""
        for stage, more in seconds:
            stages = self._models[model].stages[stage]
            stages[0] += 1
            stages[1] += more

    def models(self) -> list[str]:
        """Return the models of which anything is counted."""
        return list(dict.fromkeys((*self._models, *self.inferences.models())))

    def collect(self, models: Iterable[str]) -> Iterator[Metric]:
        """Yield what is counted of ``models``; of one without a request yet no times.

        With hundreds of models most have none, and times would be half of all text. Stages are summaries: a
        histogram would be twenty series of every model and stage.
        """
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
        tokens = CounterMetricFamily(
            "layerstream_text_tokens", "Tokens of texts, special ones among them", labels=["model"]
        )
        cut = CounterMetricFamily(
            "layerstream_truncated_texts", "Texts that the model saw in part", labels=["model"]
        )
        for model in models:
            if (figures := self._models.get(model)) is None:
                continue
            if figures.tokens:
                tokens.add_metric([model], figures.tokens)
                cut.add_metric([model], figures.cut_texts)
            for outcome, ended in figures.outcomes.items():
                requests.add_metric([model, outcome], ended)
            read.add_metric([model], figures.read_bytes)
            if not any(figures.outcomes.values()):
                continue
            so_far = [sum(figures.delays[: index + 1]) for index in range(len(_BOUNDS))]
            buckets = list(zip(_BOUNDS, so_far, strict=True))
            delays.add_metric([model], buckets, figures.delay_seconds)
            for stage, (count, total) in figures.stages.items():
                stages.add_metric([model, stage], int(count), total)
        yield from (requests, delays, stages, read, tokens, cut)


# The metrics of Triton Inference Server beside ours, so that dashboards made for it show something.
#
# Its counters have no suffix ``_total``, which the client library adds to every counter: so this is text
# of its own. Times are of answered requests, as Triton counts them. What it counts and we do not have is
# absent.

_PREFIX = "nv_inference_"
_TEXTS = {
    "request_success": "Number of successful inference requests",
    "request_failure": "Number of failed inference requests",
    "count": "Number of inferences performed",
    "exec_count": "Number of model executions performed",
    "request_duration_us": "Cumulative inference request duration in microseconds",
    "queue_duration_us": "Cumulative inference queuing duration in microseconds",
    "compute_input_duration_us": "Cumulative time in which bodies become tensors in microseconds",
    "compute_infer_duration_us": "Cumulative duration of sweeps in microseconds",
    "compute_output_duration_us": "Cumulative time in which outputs become answers in microseconds",
}
#: Every family that is exposed.
NAMES = tuple(_PREFIX + name for name in _TEXTS)


def text(statistics: Iterable[tuple[str, str, ModelStatistics]]) -> str:
    """Return ``statistics`` in Prometheus' text format."""
    lines: dict[str, list[str]] = {name: [] for name in _TEXTS}
    for model, version, figures in statistics:
        labels = f'model="{_escaped(model)}",version="{_escaped(version)}"'
        for name, more, value in _samples(figures):
            lines[name].append(f"{_PREFIX}{name}{{{labels}{more}}} {value}\n")
    return "".join(
        f"# HELP {_PREFIX}{name} {_TEXTS[name]}\n# TYPE {_PREFIX}{name} counter\n{''.join(samples)}"
        for name, samples in lines.items()
    )


def _samples(figures: ModelStatistics) -> Iterator[tuple[str, str, int]]:
    """Yield name, more labels, value."""
    computed = figures.computed
    yield "request_success", "", computed.count
    for reason in REASONS:
        count = sum(n for outcome, n in figures.failures.items() if outcome.reason == reason)
        yield "request_failure", f',reason="{reason}"', count
    yield "count", "", computed.count
    yield "exec_count", "", figures.executions
    durations = {
        "request": figures.success_ns,
        "queue": figures.queue_ns,
        "compute_input": computed.input_ns,
        "compute_infer": computed.infer_ns,
        "compute_output": computed.output_ns,
    }
    for name, ns in durations.items():
        yield f"{name}_duration_us", "", ns // 1000


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
