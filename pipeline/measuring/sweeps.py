"""Sweeps of an open engine on drawn inputs, measured, and the limits of one exact plan."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from models.network.fields import STRINGS, Array
from models.network.node import NamedTensor
from models.packs.manifest import Manifest
from models.packs.records.ports import Port
from models.runtime.sessions import wait_until_quiet
from pipeline.devices.base import Device
from pipeline.execution.engine import Engine
from pipeline.execution.given import Arrays
from pipeline.execution.opened import opened
from pipeline.planning.plan import Plan, PlanError
from pipeline.profiles.delay_limits import SweepLimits
from pipeline.program.program import PreparedPiece, Program
from pipeline.schedule.trace import TraceEvent
from pipeline.timing.durations import services

# Inputs for measurements and checks: what a model takes, without a picture.

#: Standard normal numbers and small integers, or the same number everywhere.
Kind = Literal["random", "ones", "zeros"]


class HasInputs(Protocol):
    """A network; ``required_inputs``: those of its inputs that have no default."""

    @property
    def inputs(self) -> Sequence[Port | NamedTensor]: ...
    @property
    def required_inputs(self) -> Sequence[Port | NamedTensor]: ...


def random_inputs(
    network: HasInputs, seed: int = 0, kind: Kind = "random", required_only: bool = True
) -> dict[str, NDArray[Any]]:
    """Return one input set: standard normal numbers, integers of 0 and 1, or all the same.

    So small an integer is an index of nearly everything; of large tables random indices name any rows.
    Dimensions that only a run gives are 1. ``required_only``: without the inputs that have a default.
    """
    ports = network.required_inputs if required_only else network.inputs
    tensors = random_tensors({port.name: port for port in ports}, seed, kind)
    manifest = network.pack.manifest if isinstance(network, Program) else network
    if isinstance(manifest, Manifest) and kind == "random":
        generator = np.random.default_rng(seed)
        for name, limit in manifest.index_limits.items():
            if name in tensors:
                like = tensors[name]
                tensors[name] = generator.integers(0, limit, like.shape).astype(like.dtype)
    return tensors


def random_tensors(arrays: Mapping[str, Array], seed: int, kind: Kind) -> dict[str, NDArray[Any]]:
    """Return tensors of these dtypes and shapes, as ``random_inputs`` does."""
    generator = np.random.default_rng(seed)
    return {name: _drawn(array, kind, generator) for name, array in arrays.items()}


def with_compared(
    inputs: Mapping[str, NDArray[Any]], compared: Iterable[tuple[str, float]]
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield ``inputs``, one of them as what it is ``compared`` to (``Traits``)."""
    for name, operand in compared:
        if name in inputs:
            yield {**inputs, name: np.full_like(inputs[name], operand)}


def _drawn(port: Array, kind: Kind, generator: np.random.Generator) -> NDArray[Any]:
    shape = tuple(max(n, 1) if n < 0 else n for n in port.shape)
    is_float = port.dtype != STRINGS and np.dtype(port.dtype).kind == "f"
    if kind != "random":
        numbers: NDArray[Any] = np.full(shape, 1 if kind == "ones" else 0)
    elif is_float:
        numbers = generator.standard_normal(shape)
    else:
        numbers = generator.integers(0, 2, shape)
    return numbers.astype(str if port.dtype == STRINGS else port.dtype)


# Sweeps of an open engine, one after the other, measured.

# Of the processor's last cache where the system does not say, and the most that is written for it.
_USUAL_CACHE_BYTES = 8 << 20
_MOST_CACHE_BYTES = 64 << 20
# Threads spin for a shorter time; a thread that reads beside the sweeps never sleeps.
_MOST_QUIET_SECONDS = 0.1


@dataclass(frozen=True)
class Measured:
    """A sweep and its trace."""

    events: list[TraceEvent]
    delay_seconds: float


@dataclass(frozen=True)
class Answered:
    """A sweep that was not recorded; ``outside_seconds``: of its request, all else."""

    delay_seconds: float
    outside_seconds: float


def measured_sweeps(engine: Engine, inputs: Arrays) -> Iterator[Measured]:
    """Run sweeps without end, each after an idle moment."""
    for _ in _idle_moments():
        events: list[TraceEvent] = []
        statistics = engine.run(inputs, record=events.append)[1]
        yield Measured(events, statistics.delay_seconds)


def answered_sweeps(engine: Engine, inputs: Arrays) -> Iterator[Answered]:
    """Run sweeps as ``measured_sweeps`` does, without records: to record may take as long as all else."""
    for _ in _idle_moments():
        began = time.perf_counter()
        delay = engine.run(inputs)[1].delay_seconds
        yield Answered(delay, max(time.perf_counter() - began - delay, 0.0))


def _idle_moments() -> Iterator[None]:
    """Yield where a request finds what it does after an idle moment: no thread spins, no data in caches."""
    others = np.zeros(cache_bytes(), np.uint8)
    while True:
        others += 1
        wait_until_quiet(_MOST_QUIET_SECONDS)
        yield


def cache_bytes(caches: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Return the size of the processor's largest cache, or what is usual; 64 MiB at most."""
    sizes = [file.read_text().strip() for file in caches.glob("index*/size")]
    known = [int(size[:-1]) << 10 for size in sizes if size.endswith("K")]
    return min(max(known, default=_USUAL_CACHE_BYTES), _MOST_CACHE_BYTES)


# Measuring the limits of one exact plan: what its delay bound is calculated from.

DEFAULT_RUNS = 200

#: Called with the steps done and all steps.
Progress = Callable[[int, int], None]


def measure_limits(
    program: Program,
    plan: Plan,
    device: Device,
    runs: int = DEFAULT_RUNS,
    progress: Progress = lambda done, total: None,
) -> SweepLimits:
    """Measure what the operations of ``plan`` do not exceed in ``runs`` sweeps, one after the other.

    Raises:
        PlanError: the network computes which rows of a table are read. LoaderError: weights.bin cannot be
            read. DeviceError: a kernel cannot be loaded or fails.
    """
    _check_lookups(program, plan)
    seen = []
    with opened(program, plan, device) as engine:
        sweeps = measured_sweeps(engine, random_inputs(program))
        next(sweeps)  # the first one touches all memory, and verifies
        for number in range(runs):
            sweep = next(sweeps)
            served = services(plan.stages, sweep.events, plan.choice.depth)
            seen.append((served, sweep.delay_seconds))
            progress(number + 1, runs)
    return SweepLimits.of(plan, seen)


def _check_lookups(program: Program, plan: Plan) -> None:
    """Check that drawn inputs read as many rows of tables as a request may: random reads of any rows.

    Raises:
        PlanError: a plan reads rows by indices that the network computes.
    """
    ports = {
        port.value for port in program.inputs if port.name in program.pack.manifest.index_limits
    }
    for step in plan.steps:
        if not isinstance(step, PreparedPiece) or step.table_span is None:
            continue
        value = step.inputs[0].index
        if value not in ports:
            raise PlanError(
                f"{program.name}: no bound: which rows of a table are read {program.values[value].name!r} "
                "says, which the network computes; `--without find-tables` compiles it without such reads"
            )
