"""Prometheus metrics: those that requests fill, and those that are read when scraped."""

import asyncio
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client import (
    CollectorRegistry,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from loader.pool.pool import ReadPool
from pipeline.devices.base import Device
from pipeline.execution.statistics import SweepStatistics
from server.access import Access
from server.memory.budget import Budget
from server.metrics import inference_statistics
from server.metrics.collectors import (
    AccessCollector,
    ConnectionCollector,
    DeviceCollector,
    MemoryCollector,
    ModelCollector,
    ReadCollector,
    TrafficCollector,
)
from server.metrics.inference_statistics import InferenceStatistics, Passage
from server.operation.process import process_memory
from server.operation.tracing import current
from server.repository.repository import Repository
from server.requests.exchange import Exchanges
from server.transport.registry import Registry

# Outcomes and times of requests: counted for each of them, read only by a scrape.
#
# Plain numbers, since all of it happens on the event loop.

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


class _RequestCollector(Collector):
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


# All metrics.

#: Every metric of our own, by the name that queries use (histograms without suffix).
METRIC_NAMES = frozenset(
    {
        "layerstream_memory_bytes",
        "layerstream_budget_bytes",
        "layerstream_budget_used_bytes",
        "layerstream_request_memory_bytes",
        "layerstream_request_memory_used_bytes",
        "layerstream_request_memory_waiting",
        "layerstream_requests_in_flight",
        "layerstream_stalled_requests_total",
        "layerstream_process_base_bytes",
        "layerstream_process_base_anonymous_bytes",
        "layerstream_process_anonymous_bytes",
        "layerstream_process_file_bytes",
        "layerstream_cgroup_limit_bytes",
        "layerstream_cgroup_held_bytes",
        "layerstream_connections",
        "layerstream_unauthorized_requests_total",
        "layerstream_connections_dropped_total",
        "layerstream_connections_refused_total",
        "layerstream_request_seconds",
        "layerstream_stage_seconds",
        "layerstream_read_bytes_total",
        "layerstream_requests_total",
        "layerstream_model_refusals_total",
        "layerstream_model_evictions_total",
        "layerstream_cold_start_seconds",
        "layerstream_queue_length",
        "layerstream_model_ready",
        "layerstream_model_absent",
        "layerstream_model_weight_bytes",
        "layerstream_model_workers",
        "layerstream_ahead_bytes",
        "layerstream_huge_page_bytes",
        "layerstream_sweep_seconds",
        "layerstream_swept_requests_total",
        "layerstream_queue_priority",
        "layerstream_predicted_seconds",
        "layerstream_bound_seconds",
        "layerstream_bound_exceeded_total",
        "layerstream_bound_violations_total",
        "layerstream_reader_info",
        "layerstream_disk_read_bytes_total",
        "layerstream_disk_reads_total",
        "layerstream_disk_read_failures_total",
        "layerstream_disk_read_seconds_total",
        "layerstream_disk_read_cpu_seconds_total",
        "layerstream_disk_reads_hung",
        "layerstream_device_memory_bytes",
        "layerstream_device_lost",
    }
)
#: Those that need a profile: without one there is nothing to show.
PREDICTIONS = frozenset({"layerstream_predicted_seconds", "layerstream_bound_seconds"})
#: Those of a device with memory of its own account: none with the CPU.
DEVICE = frozenset({"layerstream_device_memory_bytes", "layerstream_device_lost"})
#: Those of a control group with a memory limit.
LIMITED = frozenset({"layerstream_cgroup_limit_bytes", "layerstream_cgroup_held_bytes"})
#: Those of the transport, which tests of the application alone do without.
CONNECTIONS = frozenset(
    {
        "layerstream_connections",
        "layerstream_connections_dropped_total",
        "layerstream_connections_refused_total",
    }
)


class Metrics:
    """All metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._requests = _RequestCollector()
        self.registry.register(self._requests)
        #: What Triton counts: for its statistics, and for its metrics.
        self.inferences = InferenceStatistics()
        #: What the process holds.
        self.memory = MemoryCollector()
        self.registry.register(self.memory)

    def watch(
        self,
        repository: Repository,
        budget: Budget,
        exchanges: Exchanges,
        pool: ReadPool,
        device: Device,
    ) -> None:
        """Read memory, states, traffic and what reading took at each scrape."""
        self.registry.register(ModelCollector(repository, budget))
        self.registry.register(TrafficCollector(exchanges))
        self.registry.register(ReadCollector(pool))
        self._device = DeviceCollector(device)
        self.registry.register(self._device)

    def watch_access(self, access: Access) -> None:
        """Count requests without a valid key, at each scrape."""
        self.registry.register(AccessCollector(access))

    def watch_connections(self, connections: Registry) -> None:
        """Count connections at each scrape."""
        self.registry.register(ConnectionCollector(connections))

    def models_follow(self) -> None:
        """Note the memory that the process holds now, before its models."""
        self.memory.base = process_memory()

    def expect(self, model: str, version: str | None) -> None:
        """Make the series of ``model`` exist before its first request, so that rates start at 0.

        ``version``: that is loaded, None where none is.
        """
        self._requests.expect(model)
        if version is not None:
            self.inferences.of(model, version)

    def end(
        self,
        model: str,
        version: str,
        outcome: str,
        seconds: float,
        passage: Passage | None = None,
    ) -> None:
        """Count one request of a known model, which took so many seconds; ``outcome``: one of OUTCOMES."""
        self._requests.end(model, outcome, seconds)
        self.inferences.of(model, version).add(outcome, seconds, passage)

    def sweep(self, model: str, statistics: SweepStatistics, queue_seconds: float) -> None:
        """Observe the stages of an answered request."""
        if (trace := current.get()) is not None:
            trace.sweep(model, statistics, queue_seconds)
        times = (
            ("queue", queue_seconds),
            ("read", statistics.read_seconds),
            ("copy", statistics.copy_seconds),
            ("kernel", statistics.kernel_seconds),
            ("stall", statistics.stall_seconds),
        )
        self._requests.add(model, times, statistics.read_bytes)

    def preprocess(self, model: str, seconds: float) -> None:
        """Observe how long an image took to become a tensor."""
        self._requests.add(model, (("preprocess", seconds),))

    async def render(self) -> bytes:
        """Return the exposition text, after a look at the device."""
        await asyncio.to_thread(self._device.look)
        return generate_latest(self.registry) + inference_statistics.text(self.inferences).encode()
