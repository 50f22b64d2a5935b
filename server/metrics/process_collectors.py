"""Metrics of the process that are read when scraped: its memory, its connections, who was let in."""

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from server.access.guard import Access
from server.memory.cgroup import MemoryLimit, memory_limit
from server.metrics.families import counter, gauge
from server.operation.process import ProcessMemory, process_memory
from server.transport.registry import Registry


class MemoryCollector(Collector):
    """What the process holds beside what it held before any model was loaded, and what it may hold."""

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
            yield gauge(name, text, value=value)


class ConnectionCollector(Collector):
    """How many connections there are, how many gave way, and how many found no place."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Yield the figures of the registry."""
        yield gauge("connections", "Open connections", value=len(self._registry))
        figures = [
            ("connections_dropped", "Closed while silent, for others", self._registry.dropped),
            ("connections_refused", "Answered 503: no place was left", self._registry.refused),
        ]
        for name, text, value in figures:
            yield counter(name, text, value=value)


class AccessCollector(Collector):
    """How many requests had no valid key, where keys are asked for."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def collect(self) -> Iterator[Metric]:
        """Yield the count."""
        yield counter(
            "unauthorized_requests", "Without a key, or a wrong one", value=self._access.refused
        )
