"""Metrics that are read when scraped: the state of models, of the budget, and of reading."""

from collections.abc import Callable, Iterator, Sequence
from typing import get_args

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from loader.pool.pool import ReadPool
from pipeline.devices.base import Device, DeviceLostError
from pipeline.planning.plan import PipelinePlan
from server.access import Access
from server.memory.budget import Budget
from server.memory.holdings import Holding, account
from server.memory.process_memory import MemoryLimit, memory_limit
from server.operation.process import ProcessMemory, process_memory
from server.repository.entry import Absence, Entry
from server.repository.repository import Repository
from server.requests.exchange import Exchanges
from server.scheduling.sweeps import HIGHEST, LOWEST, NORMAL
from server.transport.registry import Registry


def _gauge(name: str, text: str, *labels: str, value: float | None = None) -> GaugeMetricFamily:
    """Return a gauge with ``labels``, or of one ``value``."""
    return GaugeMetricFamily(f"layerstream_{name}", text, value, labels or None)


def _counter(name: str, text: str, *labels: str, value: float | None = None) -> CounterMetricFamily:
    """Return a counter with ``labels``, or of one ``value``."""
    return CounterMetricFamily(f"layerstream_{name}", text, value, labels or None)


def _summary(name: str, text: str, *labels: str) -> SummaryMetricFamily:
    """Return a summary of counts and sums with ``labels``."""
    return SummaryMetricFamily(f"layerstream_{name}", text, labels=labels)


# Metrics of the process that are read when scraped: its memory, its connections, requests that were let in.


class MemoryCollector(Collector):
    """Memory of the process now and before any model was loaded, and its limit."""

    def __init__(
        self,
        held: Callable[[], ProcessMemory] = process_memory,
        limit: Callable[[], MemoryLimit | None] = memory_limit,
    ) -> None:
        self.base = held()
        self._held = held
        self._limit = limit

    def collect(self) -> Iterator[Metric]:
        """Yield the process's own figures, and those of its control group where that has a limit."""
        base, now, limit = self.base, self._held(), self._limit()
        figures = [
            (
                "process_base_bytes",
                "Interpreter, libraries and what planning takes, before models load",
                base.resident,
            ),
            ("process_base_anonymous_bytes", "Of them, what no file backs", base.anonymous),
            ("process_anonymous_bytes", "Held, and no file backs it", now.anonymous),
            ("process_file_bytes", "Pages of libraries, which the kernel may drop", now.file),
        ]
        if limit is not None:
            figures += [
                ("cgroup_limit_bytes", "Memory limit of the control group", limit.limit_bytes),
                ("cgroup_held_bytes", "Of it, what the kernel cannot drop", limit.held_bytes),
            ]
        for name, text, value in figures:
            yield _gauge(name, text, value=value)


class ConnectionCollector(Collector):
    """How many connections there are, how many gave way, and how many found no place."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Yield the figures of the registry."""
        yield _gauge("connections", "Open connections", value=len(self._registry))
        figures = [
            ("connections_dropped", "Closed while silent, for others", self._registry.dropped),
            ("connections_refused", "Answered 503: no place was left", self._registry.refused),
        ]
        for name, text, value in figures:
            yield _counter(name, text, value=value)


class AccessCollector(Collector):
    """How many requests had no valid key, where keys are asked for."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def collect(self) -> Iterator[Metric]:
        """Yield the count."""
        yield _counter(
            "unauthorized_requests", "Without a key, or a wrong one", value=self._access.refused
        )


# Metrics of models, of the budget, of the disk and the device.

_LOST = "1 when the device works again only after a restart of the process"


class ModelCollector(Collector):
    """Turns the state of repository and budget into gauges."""

    def __init__(self, repository: Repository, budget: Budget) -> None:
        self._repository = repository
        self._budget = budget

    def collect(self) -> Iterator[Metric]:
        """Yield gauges of the budget and of every model."""
        yield _gauge("budget_bytes", "The budget", value=self._budget.total_bytes)
        yield _gauge("budget_used_bytes", "Reserved of it", value=self._budget.used_bytes)
        aside = self._budget.request_bytes
        yield _gauge("request_memory_bytes", "Of it, for requests in flight", value=aside)
        entries = self._repository.entries()
        yield from self._states(entries)
        yield from _held(entries)
        yield from _expected(entries)
        yield from self._came_and_went(entries)
        yield from _swept(entries)
        yield from _queues(entries)
        yield _readers(entries)
        yield _workers(entries)

    def _states(self, entries: Sequence[Entry]) -> Iterator[Metric]:
        ready = _gauge("model_ready", "1: it serves", "model")
        absent = _gauge("model_absent", "1: why it does not serve", "model", "reason")
        weights = _gauge("model_weight_bytes", "All weights of the model", "model")
        queue = _gauge("queue_length", "Requests that wait", "model")
        refusals = _counter("model_refusals", "Loads refused for want of budget", "model")
        for entry in entries:
            ready.add_metric([entry.name], float(entry.serves))
            for reason in get_args(Absence):
                absent.add_metric([entry.name, reason], float(entry.absence == reason))
            refusals.add_metric([entry.name], entry.refusals)
            if entry.version is not None:
                weights.add_metric([entry.name], entry.weight_bytes)
            if entry.worker is not None:
                queue.add_metric([entry.name], len(entry.worker.line))
        yield from (ready, absent, weights, queue, refusals)

    def _came_and_went(self, entries: Sequence[Entry]) -> Iterator[Metric]:
        evictions = _counter("model_evictions", "Times it went for another (evict-lru)", "model")
        cold = _summary(
            "cold_start_seconds", "Loads of an evicted model for a request that waits", "model"
        )
        for entry in entries:
            evictions.add_metric([entry.name], entry.evictions)
            cold.add_metric([entry.name], entry.cold_starts, entry.cold_start_seconds)
        yield from (evictions, cold)


class TrafficCollector(Collector):
    """What requests in flight hold, and how many were ended because their clients stalled."""

    def __init__(self, exchanges: Exchanges) -> None:
        self._exchanges = exchanges

    def collect(self) -> Iterator[Metric]:
        """Yield figures of the pool and of the exchanges."""
        memory = self._exchanges.memory
        yield _gauge("request_memory_used_bytes", "Held by requests", value=memory.used_bytes)
        waiting = self._exchanges.memory.waiting
        yield _gauge("request_memory_waiting", "Requests that wait for it", value=waiting)
        yield _gauge(
            "requests_in_flight", "Requests, whatever they ask", value=len(self._exchanges)
        )
        ended = self._exchanges.stalled
        yield _counter("stalled_requests", "Ended: their clients made no progress", value=ended)


class ReadCollector(Collector):
    """What reading took for all models since the start, and what hangs."""

    def __init__(self, pool: ReadPool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        """Yield figures of the pool, labelled with how it reads."""
        statistics = self._pool.statistics()
        figures = statistics.figures
        for name, text, value in (
            ("disk_read_bytes", "Bytes read well, resident weights included", figures.n_bytes),
            ("disk_reads", "Reads that ended", figures.reads),
            ("disk_read_failures", "Of them with an error", figures.failures),
            ("disk_read_seconds", "Time of reads, which overlap", figures.seconds),
            ("disk_read_cpu_seconds", "CPU time of reads, no checksums", figures.cpu_seconds),
        ):
            family = _counter(name, text, "reader")
            family.add_metric([statistics.kind], value)
            yield family
        yield _gauge("disk_reads_hung", "Reads that do not end", value=statistics.hung)


def _held(entries: Sequence[Entry]) -> Iterator[Metric]:
    memory = _gauge(
        "memory_bytes",
        "Bytes that the engine of a model holds (scratch: its bound); (shared): what models use in turns",
        "model",
        "kind",
    )
    ahead = _gauge("ahead_bytes", "Read for a request before it comes", "model")
    huge = _gauge("huge_page_bytes", "Memory for weights that lies on huge pages", "model")
    measured: dict[str, Holding] = {}
    for entry in entries:
        if entry.worker is None:
            continue
        engine = entry.worker.engine
        # Models share sessions of equal pieces: what one added when it was opened says nothing later.
        sessions = {"sessions": engine.plan.session_bytes}
        measured[entry.name] = Holding(engine.statistics().memory | sessions, engine.takes_turns)
        huge.add_metric([entry.name], engine.huge_page_bytes())
        ahead.add_metric([entry.name], engine.ahead_bytes)
    for name, kinds in account(measured).items():
        for kind, n_bytes in kinds.items():
            memory.add_metric([name, kind], n_bytes)
    yield from (memory, ahead, huge)


class DeviceCollector(Collector):
    """Memory of a device that counts its own, all processes together, and whether it still works."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._seen: tuple[int, int] | None = None
        self._lost = False

    def look(self) -> None:
        """Ask the device; its driver may make the caller wait, so not on the event loop."""
        try:
            self._seen = self._device.memory_info()
        except DeviceLostError:
            self._lost = True

    def collect(self) -> Iterator[Metric]:
        """Yield the figures of the last look; none for a device without memory of its own."""
        if self._lost:
            yield _gauge("device_lost", _LOST, value=1.0)
            return
        if self._seen is None:
            return
        free, total = self._seen
        memory = _gauge("device_memory_bytes", "Memory of the device, of all processes", "state")
        memory.add_metric(["free"], free)
        memory.add_metric(["used"], total - free)
        yield memory
        yield _gauge("device_lost", _LOST, value=0.0)


def _expected(entries: Sequence[Entry]) -> Iterator[Metric]:
    """Yield what the profile expects, and what the watch over the bound counted."""
    predicted = _gauge("predicted_seconds", "Delay of a sweep by the profile", "model")
    bound = _gauge("bound_seconds", "Bound on the delay of a sweep by the profile", "model")
    exceeded = _counter("bound_exceeded", "Sweeps that took longer than the bound", "model")
    violations = _counter(
        "bound_violations", "Of them, those whose reads and kernels kept to the profile", "model"
    )
    for entry in entries:
        if entry.worker is None or entry.fitted is None:
            continue
        for family, seconds in (
            (predicted, entry.fitted.predicted_seconds),
            (bound, entry.fitted.bound_seconds),
        ):
            if seconds is not None:
                family.add_metric([entry.name], seconds)
        watch = entry.worker.served.watch
        exceeded.add_metric([entry.name], watch.exceeded if watch else 0)
        violations.add_metric([entry.name], watch.violations if watch else 0)
    yield from (predicted, bound, exceeded, violations)


def _swept(entries: Sequence[Entry]) -> Iterator[Metric]:
    sweeps = _summary(
        "sweep_seconds", "Answered sweeps, without time in which others computed", "model"
    )
    carried = _counter("swept_requests", "Requests that these sweeps carried", "model")
    for entry in entries:
        if entry.worker is not None:
            served = entry.worker.served
            sweeps.add_metric([entry.name], served.sweeps, served.sweep_seconds)
            carried.add_metric([entry.name], served.requests)
    yield from (sweeps, carried)


def _queues(entries: Sequence[Entry]) -> Iterator[Metric]:
    """Yield how many requests wait, of all models, by priority: three series, whatever is served."""
    queue = _gauge("queue_priority", "Requests that wait, of all models", "priority")
    workers = [entry.worker for entry in entries if entry.worker is not None]
    waiting = [ticket for worker in workers for ticket in worker.line.waiting()]
    for priority in (HIGHEST, NORMAL, LOWEST):
        count = sum(ticket.priority == priority for ticket in waiting)
        queue.add_metric([str(priority)], count)
    yield queue


def _readers(entries: Sequence[Entry]) -> Metric:
    info = _gauge(
        "reader_info", "How the weights are read: around the page cache or not", "model", "reader"
    )
    for entry in entries:
        if entry.worker is not None:
            info.add_metric([entry.name, entry.worker.served.reader.kind], 1.0)
    return info


def _workers(entries: Sequence[Entry]) -> Metric:
    workers = _gauge("model_workers", "Partitions of the model that compute at once", "model")
    for entry in entries:
        if entry.worker is not None:
            plan = entry.worker.engine.plan
            parts = len(plan.partitions) if isinstance(plan, PipelinePlan) else 1
            workers.add_metric([entry.name], parts)
    return workers
