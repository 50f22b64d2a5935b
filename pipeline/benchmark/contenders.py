"""The contenders of a benchmark: an engine of ours, or a peer's process with the file users would have."""

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from models.errors import ModelError
from models.packs.manifest import Manifest
from models.packs.pack import Pack
from models.runtime.sessions import wait_until_quiet
from pipeline.benchmark.configuration import PlannedConfiguration
from pipeline.energy import Energy, EnergyMeter
from pipeline.execution.engine import Engine
from pipeline.execution.given import Arrays, Tensors
from pipeline.peers import ONNXRUNTIME
from pipeline.peers.peer import PeerProcess

# The file that peers run: what the pack was compiled from, which is what users would have.


class SourceError(ModelError):
    """The file given as a pack's source is another one, or cannot be read."""


def find_source(pack: Pack, given: Path | None = None) -> Path | None:
    """Return the ONNX file that ``pack`` was compiled from: ``given``, or where it usually lies.

    The manifest has its name and checksum. Without ``given`` it is sought in the current folder, in that
    of the pack and in the three above.

    Raises:
        SourceError: ``given`` is another file.
    """
    if given is not None:
        try:
            same = _is_source(pack, given)
        except OSError as exc:
            raise SourceError(f"{given}: {exc.strerror or exc}") from exc
        if not same:
            raise SourceError(
                f"{given}: not what {pack.folder} was compiled from ({pack.manifest.source.file})"
            )
        return given
    folder = pack.folder.resolve()
    for place in (Path.cwd(), folder, *list(folder.parents)[:3]):
        path = place / pack.manifest.source.file
        try:
            if path.is_file() and _is_source(pack, path):
                return path
        except OSError:
            continue
    return None


def model_of(pack: Pack, source: Path | None, peer: str) -> tuple[Path | None, str]:
    """Return the file that ``peer`` runs, None where it can run none, and what to say about it."""
    if source is not None:
        return source, ""
    missing = f"{pack.manifest.source.file}, the source of the pack, was not found (--source)"
    if peer == ONNXRUNTIME and not pack.manifest.expands:
        return pack.model_path, f"{peer} runs the pack's own model.onnx: {missing}"
    return None, f"{peer} is left out: {missing}"


def _is_source(pack: Pack, path: Path) -> bool:
    source = pack.manifest.source
    if path.stat().st_size != source.n_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == source.sha256


# The contenders, each run once when its turn comes.


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


# All contenders run once, one after the other, again and again: a busy machine is busy for all.

_WARM_UP = 2
# Of one run: a moment of nothing, so that all begin as a request that comes now and then does.
_PAUSE_SECONDS = 0.005


@dataclass
class Samples:
    """What a contender's runs gave: seconds, joules; ``outputs`` of its first run."""

    contender: Contender
    delays: list[float] = field(default_factory=list)
    stalls: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    energies: list[Energy] = field(default_factory=list)
    outputs: dict[str, NDArray[Any]] = field(default_factory=dict, repr=False)


def take_turns(
    contenders: Sequence[Contender],
    iterations: int,
    meter: EnergyMeter,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Samples]:
    """Run each contender ``iterations`` times after a warm-up; return samples in their order.

    A turn ends when nothing of the contender runs any more. ``progress``: called with the rounds done.
    """
    samples = [Samples(contender) for contender in contenders]
    for turn in range(-_WARM_UP, iterations):
        # The order rotates: what runs after a cold neighbour would always pay for it.
        first = turn % len(samples)
        for each in (*samples[first:], *samples[:first]):
            _run(each, meter, keep=turn >= 0)
            if turn == -_WARM_UP:
                each.outputs = dict(each.contender.outputs())
        progress(turn + 1)
    return samples


def _run(samples: Samples, meter: EnergyMeter, keep: bool) -> None:
    contender = samples.contender
    time.sleep(_PAUSE_SECONDS)
    with meter.measure() as energy:
        delay, stall = contender.run()
    cpu = contender.settle()
    if keep:
        samples.delays.append(delay)
        samples.stalls.append(stall)
        samples.cpu.append(cpu)
        samples.energies.append(energy)
