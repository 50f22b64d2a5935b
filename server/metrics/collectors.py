"""Metrics that are read when scraped: the state of models, of the budget, and of reading."""

from collections.abc import Iterator, Sequence
from typing import get_args

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from loader.pool.pool import ReadPool
from pipeline.budget.budget import Budget
from pipeline.budget.holdings import SHARED, Allocations, Holding
from pipeline.planning.plan import PartitionedPlan
from server.access import Access
from server.memory.process_memory import memory_limit
from server.operation.line_queue import dropped_lines
from server.operation.process import ProcessMemory, process_memory
from server.operation.relieving import Relieving
from server.repository.entry import Absence, Entry
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


# The process: its memory, its connections, requests that were let in.


def of_process(base: ProcessMemory) -> Iterator[Metric]:
    """Yield the memory of the process, at its ``base`` and now, and that of its control group."""
    now, limit = process_memory(), memory_limit()
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


def of_connections(registry: Registry) -> Iterator[Metric]:
    """Yield how many connections there are, how many gave way, and how many found no place."""
    yield _gauge("connections", "Open connections", value=len(registry))
    yield _counter("connections_dropped", "Closed while silent, for others", value=registry.dropped)
    yield _counter("connections_refused", "Answered 503: no place was left", value=registry.refused)


def of_exchanges(exchanges: Exchanges) -> Iterator[Metric]:
    """Yield what requests in flight hold, and how many were ended because their clients stalled."""
    memory = exchanges.memory
    yield _gauge("request_memory_used_bytes", "Held by requests", value=memory.used_bytes)
    yield _gauge("request_memory_waiting", "Requests that wait for it", value=memory.waiting)
    yield _gauge("requests_in_flight", "Requests, whatever they ask", value=len(exchanges))
    ended = exchanges.stalled
    yield _counter("stalled_requests", "Ended: their clients made no progress", value=ended)


def of_access(access: Access) -> Iterator[Metric]:
    """Yield how many requests had no valid key, where keys are asked for."""
    yield _counter("unauthorized_requests", "Without a key, or a wrong one", value=access.refused)


def of_logs() -> Iterator[Metric]:
    """Yield how many lines for standard error and standard output were dropped."""
    text = "Nobody read them, or they could not be written"
    yield _counter("log_lines_dropped", text, value=dropped_lines())


# The disk and the device.


def of_reads(pool: ReadPool) -> Iterator[Metric]:
    """Yield what reading took for all models since the start, by how it reads, and what hangs."""
    statistics = pool.statistics()
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


def of_device(free_and_total: tuple[int, int] | None, is_lost: bool) -> Iterator[Metric]:
    """Yield the memory of a device that counts its own, all processes together, and whether it works."""
    if free_and_total is not None:
        free, total = free_and_total
        memory = _gauge("device_memory_bytes", "Memory of the device, of all processes", "state")
        memory.add_metric(["free"], free)
        memory.add_metric(["used"], total - free)
        yield memory
    if is_lost or free_and_total is not None:
        text = "1 when the device works again only after a restart of the process"
        yield _gauge("device_lost", text, value=float(is_lost))


# Models and the budget.


def of_budget(budget: Budget) -> Iterator[Metric]:
    """Yield gauges of the budget."""
    yield _gauge("budget_bytes", "The budget", value=budget.total_bytes)
    ceiling = budget.ceiling_bytes
    yield _gauge("budget_ceiling_bytes", "What may be used while memory is scarce", value=ceiling)
    exceeded = budget.exceeded_bytes
    yield _gauge("budget_exceeded_bytes", "Held above it: pins, least plans", value=exceeded)
    yield _gauge("budget_used_bytes", "Reserved of it", value=budget.used_bytes)
    aside = budget.request_bytes
    yield _gauge("request_memory_bytes", "Of it, for requests in flight", value=aside)


def of_pressure(relieving: Relieving) -> Iterator[Metric]:
    """Yield how often memory was scarce, and what models gave back."""
    info = _gauge("pressure_info", "1: what says that memory is scarce", "signals")
    info.add_metric([relieving.signals], 1.0)
    yield info
    yield _counter("pressure_events", "Reported by systemd or the kernel", value=relieving.heard)
    changes = _counter("ceiling_changes", "Of the budget's ceiling", "direction")
    changes.add_metric(["down"], relieving.lowered)
    changes.add_metric(["up"], relieving.raised)
    yield changes
    n_bytes = relieving.released_bytes
    yield _counter("released_bytes", "By models while memory was scarce", value=n_bytes)


def of_models(entries: Sequence[Entry]) -> Iterator[Metric]:
    """Yield what is known of each of ``entries``."""
    yield from _states(entries)
    yield from _held(entries)
    yield from _expected(entries)
    yield from _came_and_went(entries)
    yield from _swept(entries)
    yield from _how(entries)


def of_all(entries: Sequence[Entry]) -> Iterator[Metric]:
    """Yield what all models have together, ``entries``: memory that they share, requests that wait."""
    engines = [entry.worker.engine for entry in entries if entry.worker is not None]
    allocations = {
        str(index): Holding(engine.statistics().memory, True)
        for index, engine in enumerate(engines)
        if engine.takes_turns
    }
    memory = _memory()
    for kind, n_bytes in Allocations(allocations).shared.items():
        memory.add_metric([SHARED, kind], n_bytes)
    yield memory
    yield _queues(entries)


def _states(entries: Sequence[Entry]) -> Iterator[Metric]:
    ready = _gauge("model_ready", "1: it serves", "model")
    asleep = _gauge("model_asleep", "1: the next request reads its weights again", "model")
    absent = _gauge("model_absent", "1: why it does not serve", "model", "reason")
    weights = _gauge("model_weight_bytes", "All weights of the model", "model")
    queue = _gauge("queue_length", "Requests that wait", "model")
    refusals = _counter("model_refusals", "Loads refused for want of budget", "model")
    for entry in entries:
        ready.add_metric([entry.name], float(entry.serves))
        # Of a gauge nobody misses a 0, and hundreds of models that serve would have five each.
        for reason in () if entry.serves else get_args(Absence):
            absent.add_metric([entry.name, reason], float(entry.absence == reason))
        refusals.add_metric([entry.name], entry.refusals)
        if entry.version is not None:
            weights.add_metric([entry.name], entry.weight_bytes)
        if entry.worker is not None:
            queue.add_metric([entry.name], len(entry.worker.line))
            asleep.add_metric([entry.name], float(entry.worker.engine.is_asleep))
    yield from (ready, absent, asleep, weights, queue, refusals)


def _came_and_went(entries: Sequence[Entry]) -> Iterator[Metric]:
    evictions = _counter("model_evictions", "Times it went for another (evict-lru)", "model")
    cold = _summary(
        "cold_start_seconds", "Loads of an evicted model for a request that waits", "model"
    )
    for entry in entries:
        evictions.add_metric([entry.name], entry.evictions)
        if entry.cold_starts:
            cold.add_metric([entry.name], entry.cold_starts, entry.cold_start_seconds)
    yield from (evictions, cold)


def _memory() -> GaugeMetricFamily:
    return _gauge(
        "memory_bytes",
        "Bytes that the engine of a model holds (scratch: its bound); (shared): what models use in turns",
        "model",
        "kind",
    )


def _held(entries: Sequence[Entry]) -> Iterator[Metric]:
    memory = _memory()
    ahead = _gauge("ahead_bytes", "Read for a request before it comes", "model")
    huge = _gauge("huge_page_bytes", "Memory for weights that lies on huge pages", "model")
    for entry in entries:
        if entry.worker is None:
            continue
        engine = entry.worker.engine
        # Models share sessions of equal pieces: what one added when it was opened says nothing later.
        sessions = {"sessions": engine.plan.memory["sessions"]}
        if entry.worker.tokenizer is not None:
            sessions["tokenizer"] = engine.plan.memory["tokenizer"]
        measured = Holding(engine.statistics().memory | sessions, engine.takes_turns)
        for kind, n_bytes in measured.private.items():
            memory.add_metric([entry.name, kind], n_bytes)
        huge.add_metric([entry.name], engine.huge_page_bytes())
        ahead.add_metric([entry.name], engine.ahead_bytes)
    yield from (memory, ahead, huge)


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
        if watch is not None:
            exceeded.add_metric([entry.name], watch.exceeded)
            violations.add_metric([entry.name], watch.violations)
    yield from (predicted, bound, exceeded, violations)


def _swept(entries: Sequence[Entry]) -> Iterator[Metric]:
    sweeps = _summary(
        "sweep_seconds", "Answered sweeps, without time in which others computed", "model"
    )
    carried = _counter("swept_requests", "Requests that these sweeps carried", "model")
    shapes = _counter("shape_inferences", "Inferences of each shape of a model", "model", "shape")
    for entry in entries:
        if entry.worker is not None:
            served = entry.worker.served
            sweeps.add_metric([entry.name], served.sweeps, served.sweep_seconds)
            carried.add_metric([entry.name], served.requests)
            if served.engine.program.others:
                for shape, count in served.engine.statistics().shapes.items():
                    shapes.add_metric([entry.name, shape], count)
    yield from (sweeps, carried)
    if shapes.samples:
        yield shapes


def _queues(entries: Sequence[Entry]) -> Metric:
    """Return how many requests wait, of all models, by priority: three series, whatever is served."""
    queue = _gauge("queue_priority", "Requests that wait, of all models", "priority")
    lines = [entry.worker.line for entry in entries if entry.worker is not None]
    waiting = [ticket for line in lines if len(line) for ticket in line.waiting()]
    for priority in (HIGHEST, NORMAL, LOWEST):
        count = sum(ticket.priority == priority for ticket in waiting)
        queue.add_metric([str(priority)], count)
    return queue


def _how(entries: Sequence[Entry]) -> Iterator[Metric]:
    """Yield how each model reads and computes."""
    info = _gauge(
        "reader_info", "How the weights are read: around the page cache or not", "model", "reader"
    )
    workers = _gauge("model_workers", "Partitions of the model that compute at once", "model")
    for entry in entries:
        if entry.worker is not None:
            plan = entry.worker.engine.plan
            parts = len(plan.partitions) if isinstance(plan, PartitionedPlan) else 1
            info.add_metric([entry.name, entry.worker.served.reader.kind], 1.0)
            workers.add_metric([entry.name], parts)
    yield from (info, workers)
