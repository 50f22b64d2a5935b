"""All Prometheus metrics: those that requests fill, and those that are read when scraped."""

import asyncio

from prometheus_client import (
    CollectorRegistry,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from loader.pool.pool import ReadPool
from pipeline.devices.base import Device
from server.access import Access
from server.memory.budget import Budget
from server.metrics.collectors import (
    AccessCollector,
    ConnectionCollector,
    DeviceCollector,
    MemoryCollector,
    ModelCollector,
    ReadCollector,
    TrafficCollector,
)
from server.metrics.requests import RequestCollector, text
from server.operation.process import process_memory
from server.repository.repository import Repository
from server.requests.exchange import Exchanges
from server.transport.registry import Registry

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
        #: What requests fill.
        self.requests = RequestCollector()
        self.registry.register(self.requests)
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

    async def render(self) -> bytes:
        """Return the exposition text, after a look at the device."""
        await asyncio.to_thread(self._device.look)
        theirs = text(self.requests.inferences).encode()
        return generate_latest(self.registry) + theirs
