"""Prometheus metrics: counters and histograms filled by requests, gauges read when scraped."""

from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline.statistics import SweepStatistics
from server.budget import Budget
from server.repository import Repository

#: Every metric of our own, by the name that queries use (histograms without suffix).
METRIC_NAMES = frozenset(
    {
        "layerstream_memory_bytes",
        "layerstream_budget_bytes",
        "layerstream_budget_used_bytes",
        "layerstream_process_base_bytes",
        "layerstream_request_seconds",
        "layerstream_stage_seconds",
        "layerstream_read_bytes_total",
        "layerstream_requests_total",
        "layerstream_model_refusals_total",
        "layerstream_queue_length",
        "layerstream_model_ready",
        "layerstream_model_weight_bytes",
    }
)
STAGES = ("queue", "read", "kernel", "stall", "preprocess")
OUTCOMES = ("ok", "invalid", "busy", "deadline", "cancelled", "failed")

_DELAY_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5),
    *(0.75, 1.0, 2.0, 5.0, 10.0, 30.0),
)


class Metrics:
    """All metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._requests = Counter(
            "layerstream_requests",
            "Requests by outcome",
            ["model", "outcome"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "layerstream_request_seconds",
            "Delay of an answered request, end to end",
            ["model"],
            buckets=_DELAY_BUCKETS,
            registry=self.registry,
        )
        self._stages = Histogram(
            "layerstream_stage_seconds",
            "Time of a request by stage; read sums over reads, which overlap",
            ["model", "stage"],
            buckets=_DELAY_BUCKETS,
            registry=self.registry,
        )
        self._read = Counter(
            "layerstream_read_bytes",
            "Weight bytes read from the disk",
            ["model"],
            registry=self.registry,
        )
        self.base = Gauge(
            "layerstream_process_base_bytes",
            "Resident bytes of the interpreter and libraries before any model was loaded",
            registry=self.registry,
        )

    def watch(self, repository: Repository, budget: Budget) -> None:
        """Read memory and states from ``repository`` and ``budget`` at each scrape."""
        self.registry.register(_ModelCollector(repository, budget))

    def expect(self, model: str) -> None:
        """Make the series of ``model`` exist before its first request, so that rates start at 0."""
        for outcome in OUTCOMES:
            self._requests.labels(model, outcome)
        for stage in STAGES:
            self._stages.labels(model, stage)
        self._seconds.labels(model)
        self._read.labels(model)

    def outcome(self, model: str, outcome: str, seconds: float) -> None:
        """Count one request of a known model; ``outcome`` is one of OUTCOMES.

        Only answers count as delays: quick refusals under load would make them look better.
        """
        self._requests.labels(model, outcome).inc()
        if outcome == "ok":
            self._seconds.labels(model).observe(seconds)

    def sweep(self, model: str, statistics: SweepStatistics, queue_seconds: float) -> None:
        """Observe the stages of an answered request."""
        for stage, seconds in (
            ("queue", queue_seconds),
            ("read", statistics.read_seconds),
            ("kernel", statistics.kernel_seconds),
            ("stall", statistics.stall_seconds),
        ):
            self._stages.labels(model, stage).observe(seconds)
        self._read.labels(model).inc(statistics.read_bytes)

    def preprocess(self, model: str, seconds: float) -> None:
        """Observe how long an image took to become a tensor."""
        self._stages.labels(model, "preprocess").observe(seconds)

    def render(self) -> bytes:
        """Return the exposition text."""
        return generate_latest(self.registry)


class _ModelCollector(Collector):
    """Turns the state of repository and budget into gauges."""

    def __init__(self, repository: Repository, budget: Budget) -> None:
        self._repository = repository
        self._budget = budget

    def collect(self) -> Iterator[Metric]:
        """Yield gauges of the budget and of every model."""
        yield _gauge("layerstream_budget_bytes", "The budget", self._budget.total_bytes)
        yield _gauge("layerstream_budget_used_bytes", "Reserved of it", self._budget.used_bytes)
        memory = GaugeMetricFamily(
            "layerstream_memory_bytes",
            "Bytes that the engine of a model holds (scratch: its bound)",
            labels=["model", "kind"],
        )
        ready = GaugeMetricFamily("layerstream_model_ready", "1: it serves", labels=["model"])
        queue = GaugeMetricFamily(
            "layerstream_queue_length", "Requests that wait", labels=["model"]
        )
        weights = GaugeMetricFamily(
            "layerstream_model_weight_bytes", "All weights of the model", labels=["model"]
        )
        refusals = CounterMetricFamily(
            "layerstream_model_refusals", "Loads refused for want of budget", labels=["model"]
        )
        for entry in self._repository.entries():
            name, worker = entry.name, entry.worker
            ready.add_metric(
                [name], 1.0 if worker is not None and not worker.engine.broken else 0.0
            )
            refusals.add_metric([name], self._repository.refusals.get(name, 0))
            if entry.pack is not None:
                weights.add_metric([name], entry.pack.manifest.weight_bytes)
            if worker is not None:
                queue.add_metric([name], worker.waiting)
                for kind, n_bytes in worker.engine.statistics().memory.items():
                    memory.add_metric([name, kind], n_bytes)
        yield from (memory, ready, queue, weights, refusals)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value)
