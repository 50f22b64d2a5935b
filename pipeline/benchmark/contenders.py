"""Who takes turns in a benchmark: an engine of ours, or a peer's process."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping

from models.packs.manifest import Manifest
from models.runtime.sessions import wait_until_quiet
from pipeline.benchmark.configuration import PlannedConfiguration
from pipeline.execution.engine import Engine
from pipeline.execution.given import Arrays, Tensors
from pipeline.peers.peer import PeerProcess


class Contender(ABC):
    """Something that answers the same request again and again. ``memory``: bytes by JSON key."""

    name: str
    memory: Mapping[str, int]
    read_bytes: int = 0
    planned: PlannedConfiguration | None = None

    @abstractmethod
    def run(self) -> tuple[float, float]:
        """Answer once; return delay and stall in seconds."""

    @abstractmethod
    def settle(self) -> float:
        """Wait until nothing of it runs: no thread spins, no read is in flight.

        Returns the CPU seconds used since ``run`` began, so that what runs after an answer counts too.
        """

    @abstractmethod
    def outputs(self) -> Arrays:
        """Return the outputs of the last run."""


class Streamed(Contender):
    """An open engine in this process."""

    def __init__(self, planned: PlannedConfiguration, engine: Engine, inputs: Tensors) -> None:
        self.name = planned.configuration.label
        self.planned = planned
        self.engine = engine
        self._inputs = inputs
        self._outputs: Arrays = {}
        self._used = 0.0
        plan = planned.plan
        self.read_bytes = plan.read_bytes
        self.memory = {
            "weight_bytes": plan.weight_bytes,
            "arena_bytes": plan.arena_bytes,
            "scratch_bytes": plan.scratch_bytes,
        }

    def run(self) -> tuple[float, float]:
        self._outputs = {}
        self._used, started = time.process_time(), time.perf_counter()
        self._outputs, statistics = self.engine.run(self._inputs)
        return time.perf_counter() - started, statistics.stall_seconds

    def settle(self) -> float:
        self.engine.settle()
        wait_until_quiet()
        return time.process_time() - self._used

    def outputs(self) -> Arrays:
        return self._outputs


class Apart(Contender):
    """A process of its own, whose model is that of ``manifest``."""

    def __init__(self, peer: PeerProcess, manifest: Manifest) -> None:
        self.name = peer.name
        self.memory: Mapping[str, int] = {}
        self._peer = peer
        self._names = [port.name for port in manifest.outputs]

    def run(self) -> tuple[float, float]:
        return self._peer.run(), 0.0

    def settle(self) -> float:
        return self._peer.settle()

    def outputs(self) -> Arrays:
        return self._peer.outputs(self._names)


class ResidentPeer(Apart):
    """A peer that holds all weights."""

    def __init__(self, peer: PeerProcess, manifest: Manifest) -> None:
        super().__init__(peer, manifest)
        self.memory = {
            "weight_bytes": manifest.weight_bytes,
            "arena_bytes": peer.arena_bytes,
            "scratch_bytes": 0,
        }
