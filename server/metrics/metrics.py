"""All Prometheus metrics: those that requests fill, and those that are read when scraped."""

import asyncio
from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from loader.pool.pool import ReadPool
from pipeline.devices.base import Device, DeviceLostError
from server.access import Access
from server.memory.budget import Budget
from server.metrics.collectors import (
    of_access,
    of_connections,
    of_device,
    of_exchanges,
    of_logs,
    of_models,
    of_process,
    of_reads,
)
from server.metrics.requests import RequestMetrics, text
from server.operation.process import process_memory
from server.repository.repository import Repository
from server.requests.exchange import Exchanges
from server.transport.registry import Registry


class Metrics(Collector):
    """All metrics of one server, in a registry of its own."""

    def __init__(
        self,
        repository: Repository,
        budget: Budget,
        exchanges: Exchanges,
        pool: ReadPool,
        device: Device,
        access: Access,
    ) -> None:
        self._repository, self._budget = repository, budget
        self._exchanges, self._access = exchanges, access
        self._pool, self._device = pool, device
        self._device_memory: tuple[int, int] | None = None
        self._is_device_lost = False
        #: The connections of the transport, where there is one.
        self.connections: Registry | None = None
        #: What the process held before its models.
        self.base = process_memory()
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        #: What requests fill.
        self.requests = RequestMetrics()
        self._registry.register(self)

    def models_follow(self) -> None:
        """Note the memory that the process holds now, before its models."""
        self.base = process_memory()

    def collect(self) -> Iterator[Metric]:
        """Yield what is read when scraped."""
        yield from self.requests.collect()
        yield from of_process(self.base)
        yield from of_models(self._repository.entries(), self._budget)
        yield from of_exchanges(self._exchanges)
        yield from of_reads(self._pool)
        yield from of_device(self._device_memory, self._is_device_lost)
        yield from of_access(self._access)
        yield from of_logs()
        if self.connections is not None:
            yield from of_connections(self.connections)

    async def render(self) -> bytes:
        """Return the exposition text, after a look at the device."""
        await asyncio.to_thread(self._look_at_device)
        theirs = text(self.requests.inferences).encode()
        return generate_latest(self._registry) + theirs

    def _look_at_device(self) -> None:
        """Ask the device; its driver may make the caller wait, so not on the event loop."""
        try:
            self._device_memory = self._device.memory_info()
        except DeviceLostError:
            self._device_memory, self._is_device_lost = None, True
