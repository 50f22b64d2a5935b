"""All Prometheus metrics: those that requests fill, and those that are read when scraped."""

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from loader.pool.pool import ReadPool
from pipeline.budget.budget import Budget
from pipeline.devices.base import Device, DeviceLostError
from server.access import Access
from server.metrics.collectors import (
    of_access,
    of_all,
    of_budget,
    of_connections,
    of_device,
    of_exchanges,
    of_logs,
    of_models,
    of_pressure,
    of_process,
    of_reads,
)
from server.metrics.requests import RequestMetrics, text
from server.operation.process import process_memory
from server.operation.relieving import Relieving
from server.repository.repository import Repository
from server.requests.exchange import Exchanges
from server.transport.registry import Registry

T = TypeVar("T")

# So many models are rendered before the event loop has its turn again: about 1 ms.
_MODELS_A_SLICE = 2
# Where a family begins in a text.
_FAMILY = re.compile(r"^(?=# HELP )", re.MULTILINE)


class _Collected(Collector):
    """Families that were collected."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return them."""
        return self._families


class Exposition:
    """Prometheus' text of families, the samples of which may come in several steps."""

    def __init__(self) -> None:
        #: Samples by the head of their family, the lines HELP and TYPE.
        self._samples: dict[str, list[str]] = {}

    def add(self, text: str) -> None:
        """Add the samples of ``text``, which has the same format."""
        for family in filter(None, _FAMILY.split(text)):
            help_line, type_line, samples = family.split("\n", 2)
            self._samples.setdefault(f"{help_line}\n{type_line}\n", []).append(samples)

    def add_families(self, families: Iterable[Metric]) -> None:
        """Add ``families``."""
        self.add(generate_latest(_Collected(families)).decode())

    def encode(self) -> bytes:
        """Return all of it."""
        return "".join(head + "".join(samples) for head, samples in self._samples.items()).encode()


class Metrics:
    """All metrics of one server."""

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
        #: What follows memory pressure, where anything does.
        self.relieving: Relieving | None = None
        #: What the process held before its models.
        self.base = process_memory()
        registry = CollectorRegistry()
        #: What the client library collects of the process.
        self._collectors = ProcessCollector(registry=registry), PlatformCollector(registry=registry)
        #: What requests fill.
        self.requests = RequestMetrics()

    def models_follow(self) -> None:
        """Note the memory that the process holds now, before its models."""
        self.base = process_memory()

    def _families(self) -> Iterator[Iterable[Metric]]:
        """Yield families in slices, those of models at first without samples; requests fill others."""
        yield [*self.requests.collect(()), *of_models(())]
        yield of_all(self._repository.entries())
        yield of_reads(self._pool)
        yield self._of_server()
        for entries in _slices(self._repository.entries()):
            yield of_models(entries)

    def _of_server(self) -> Iterator[Metric]:
        yield from of_budget(self._budget)
        if self.relieving is not None:
            yield from of_pressure(self.relieving)
        yield from of_exchanges(self._exchanges)
        yield from of_device(self._device_memory, self._is_device_lost)
        yield from of_access(self._access)
        yield from of_logs()
        if self.connections is not None:
            yield from of_connections(self.connections)

    async def render(self) -> bytes:
        """Return the exposition text, after a look at the device and at the process.

        With many models, other requests are answered meanwhile; samples of one model belong together.
        """
        exposition = Exposition()
        exposition.add_families(await asyncio.to_thread(self._inspect))
        for families in self._families():
            await asyncio.sleep(0)
            exposition.add_families(families)
        exposition.add(text(()))
        for models in _slices(self.requests.models()):
            await asyncio.sleep(0)
            exposition.add_families(self.requests.collect(models))
            exposition.add(text(self.requests.inferences.of_models(models)))
        await asyncio.sleep(0)
        return exposition.encode()

    def _inspect(self) -> list[Metric]:
        """Ask the device, and return the families of the process.

        Not on the event loop: a driver may make the caller wait, and the system adds up pages and counts
        open files, of which each model has some.
        """
        try:
            self._device_memory = self._device.memory_info()
        except DeviceLostError:
            self._device_memory, self._is_device_lost = None, True
        collected = [family for collector in self._collectors for family in collector.collect()]
        return [*collected, *of_process(self.base)]


def _slices(models: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(models), _MODELS_A_SLICE):
        yield models[start : start + _MODELS_A_SLICE]
