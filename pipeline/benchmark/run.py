"""The benchmark itself: open all contenders, take turns, make the document and its rows."""

import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.pool.pool import ReadPool
from loader.readers.disk import REAL_DISK, Disk
from models.packs.manifest import Manifest
from models.packs.pack import Pack
from models.packs.target import host_target
from pipeline.benchmark.configuration import (
    BenchConfiguration,
    PlannedConfiguration,
    plan_configuration,
)
from pipeline.benchmark.contenders import (
    Contender,
    ResidentPeer,
    Samples,
    Streamed,
    find_source,
    model_of,
    take_turns,
)
from pipeline.devices.base import Device
from pipeline.devices.cpu import CpuDevice
from pipeline.energy import EnergyMeter, find_meter
from pipeline.execution.given import Arrays
from pipeline.execution.opened import opened
from pipeline.measuring.sweeps import random_inputs
from pipeline.peers import ONNXRUNTIME, PEERS
from pipeline.peers.peer import PeerError, PeerProcess, peer_command
from pipeline.profiles.found_plans_file import plans_of
from pipeline.profiles.machine import cpu_model
from pipeline.profiles.profile import Profile
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.trace import TraceEvent

# What a benchmark says of each contender: the rows of ``bench pipeline --json``.

Tensors = Mapping[str, NDArray[Any]]


def _make_rows(samples: Sequence[Samples], manifest: Manifest) -> list[dict[str, Any]]:
    """Return one row a contender; ``pre`` is among them. Times in ms, CPU in seconds, energy in joules."""
    by_name = {each.contender.name: each for each in samples}
    pre, reference = by_name["pre"], by_name.get(ONNXRUNTIME)
    delay = statistics.median(pre.delays)
    lacking = missing_energy(samples)
    return [
        {
            "architecture": each.contender.name,
            "total_bytes": each.contender.planned and each.contender.planned.plan.total_bytes,
            **each.contender.memory,
            "weight_percent": _percent(each, manifest),
            **_equation(each.contender.planned, manifest),
            "delay_ms": spread([seconds * 1e3 for seconds in each.delays]),
            "ratio_to_pre": statistics.median(each.delays) / delay,
            **_predicted(each.contender.planned),
            "stall_ms": statistics.median(each.stalls) * 1e3,
            "read_bytes": each.contender.read_bytes,
            "cpu_seconds": statistics.median(each.cpu),
            "max_relative_error": reference and relative_error(each.outputs, reference.outputs),
            "equal_to_pre": equal(each.outputs, pre.outputs),
            # All rows or none: rows with different runs missing would not compare.
            "energy_joules": None if lacking else spread(_joules(each)),
        }
        for each in samples
    ]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, 95th percentile and maximum."""
    return {
        "median": statistics.median(values),
        "p95": float(np.percentile(values, 95)),
        "max": max(values),
    }


def missing_energy(samples: Sequence[Samples]) -> str | None:
    """Return why a run has no energy, None where all have."""
    energies = (energy for each in samples for energy in each.energies)
    return next((energy.source for energy in energies if energy.joules is None), None)


def relative_error(outputs: Tensors, expected: Tensors) -> float | None:
    """Return the largest difference relative to the largest value of its output.

    None where the two are not the same tensors of numbers.
    """
    errors = [0.0]
    for name, array in expected.items():
        other = outputs.get(name)
        if other is None or other.shape != array.shape or array.dtype.kind not in "fiu":
            return None
        a, b = np.asarray(other, np.float64), np.asarray(array, np.float64)
        scale = float(np.abs(b).max(initial=0.0)) or 1.0
        errors.append(float(np.abs(a - b).max(initial=0.0)) / scale)
    return max(errors)


def equal(outputs: Tensors, expected: Tensors) -> bool:
    """Return whether the outputs are the same, to the last bit."""
    return set(outputs) == set(expected) and all(
        outputs[name].dtype == array.dtype
        and outputs[name].shape == array.shape
        and outputs[name].tobytes() == array.tobytes()
        for name, array in expected.items()
    )


def _percent(samples: Samples, manifest: Manifest) -> float | None:
    weights = manifest.weight_bytes
    return 100 * samples.contender.memory["weight_bytes"] / weights if weights else None


def _equation(planned: PlannedConfiguration | None, manifest: Manifest) -> dict[str, Any]:
    """Return the memory equation of seed 003, with our chunks and with whole layers as there."""
    if planned is None or not planned.plan.architecture.equation:
        return {"equation": None, "equation_bytes": None, "equation_layer_bytes": None}
    architecture = planned.plan.architecture
    base = manifest.weight_bytes if architecture.resident else manifest.largest_layer_bytes
    return {
        "equation": architecture.equation,
        "equation_bytes": planned.plan.equation_bytes,
        "equation_layer_bytes": architecture.factor * base,
    }


def _predicted(planned: PlannedConfiguration | None) -> dict[str, Any]:
    prediction = None if planned is None else planned.fitted.prediction
    return {
        "predicted_ms": None if prediction is None else prediction.delay_ms,
        "bound_ms": None if prediction is None else prediction.bound_ms,
    }


def _joules(samples: Samples) -> list[float]:
    return [energy.joules for energy in samples.energies if energy.joules is not None]


# All contenders opened, their turns, and the document.

PRE = BenchConfiguration("pre", ARCHITECTURES["pre"])

#: Receives a configuration's plan and the events of each of its sweeps that were traced.
TraceSink = Callable[[PlannedConfiguration, list[list[TraceEvent]]], None]


@dataclass(frozen=True)
class BenchOptions:
    """How to measure. ``source``: what the peers run; ``peers``: which of them.

    ``ring_bytes``: of architectures that nothing tunes. ``profile``: tuned ones are planned on it.
    ``device``: what computes; None: the CPU, one thread a core. ``disk``: what weights are read from.
    ``traced``: so many more sweeps of each, for a caller that needs their traces.
    """

    iterations: int = 20
    ring_bytes: int | None = None
    device: Device | None = None
    source: Path | None = None
    peers: Sequence[str] = PEERS
    profile: Profile | None = None
    disk: Disk = REAL_DISK
    traced: int = 1


def bench_pipeline(
    program: Program,
    configurations: Sequence[BenchConfiguration],
    options: BenchOptions = BenchOptions(),
    *,
    progress: Callable[[int], None] = lambda done: None,
    meter: EnergyMeter | None = None,
    trace: TraceSink | None = None,
) -> dict[str, Any]:
    """Measure each configuration and the resident peers, taking turns; ``pre`` is always among them.

    Energy is measured by ``meter``, by default whatever this machine has. ``trace`` receives more
    sweeps of each configuration. Returns the keys of ``bench pipeline --json``.

    Raises:
        PlanError, ProfileError: a configuration cannot be planned. SourceError: see ``find_source``.
        LoaderError, DeviceError: a pack cannot be read or run.
    """
    meter = meter or find_meter()
    device = options.device or CpuDevice()
    known = plans_of(program.pack)
    planned = [
        plan_configuration(
            *(program, each.adapted(device), options.ring_bytes, options.profile, known)
        )
        for each in dict.fromkeys((PRE, *configurations))
    ]
    known.save()
    inputs = random_inputs(program)
    notes: list[str] = []
    with ExitStack() as stack:
        ours = stack.enter_context(_streamed(program, planned, device, inputs, options.disk))
        peers = stack.enter_context(_peers(program.pack, options, device.threads, inputs, notes))
        contenders: list[Contender] = [*ours, *peers]
        samples = take_turns(contenders, options.iterations, meter, progress)
        if trace is not None:
            _trace(ours, inputs, trace, options.traced)
    return {
        "model": program.name,
        "resolution": resolution(program.pack.manifest),
        "machine": machine(device),
        "pace_bytes_per_second": options.disk.bytes_per_second,
        "iterations": options.iterations,
        "energy": missing_energy(samples) or meter.source,
        "model_weight_bytes": program.weight_bytes,
        "largest_layer_bytes": program.largest_layer_bytes,
        "notes": notes,
        "searches": _by_label(planned, PlannedConfiguration.search),
        "reasons": _by_label(planned, lambda each: list(each.fitted.reasons)),
        "rows": _make_rows(samples, program.pack.manifest),
    }


def resolution(manifest: Manifest) -> int | None:
    """Return the width of the images that a model takes, None where it takes none."""
    shape = manifest.inputs[0].shape if manifest.inputs else ()
    return shape[-1] if len(shape) == 4 else None


def machine(device: Device) -> dict[str, Any]:
    """Return what the figures were measured on."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": device.gpu,
        "threads": device.threads,
        "native_kernels": device.native_kernels,
        "isa": host_target().isa,
        "onnxruntime": host_target().onnxruntime,
        "system": f"{platform.system()} {platform.release()}",
    }


def _by_label(
    planned: Sequence[PlannedConfiguration], of: Callable[[PlannedConfiguration], Any]
) -> dict[str, Any]:
    """Return what ``of`` gives for each configuration, where it gives anything."""
    return {each.configuration.label: value for each in planned if (value := of(each))}


@contextmanager
def _streamed(
    program: Program,
    planned: Sequence[PlannedConfiguration],
    device: Device,
    inputs: Arrays,
    disk: Disk,
) -> Iterator[list[Streamed]]:
    """Yield an open engine for each plan, all reading from one disk."""
    with ExitStack() as stack:
        pool = stack.enter_context(closing(ReadPool()))
        engines = []
        for each in planned:
            reader = disk.open(program.pack.weights_path)
            engine = stack.enter_context(opened(program, each.plan, device, pool, reader))
            engines.append(Streamed(each, engine, inputs))
        yield engines


@contextmanager
def _peers(
    pack: Pack, options: BenchOptions, threads: int, inputs: Arrays, notes: list[str]
) -> Iterator[list[ResidentPeer]]:
    """Yield the peers that can run this model; ``notes`` says what became of the others."""
    source = find_source(pack, options.source) if options.peers else None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="layerstream-")))
        resident_peers = []
        for name in options.peers:
            model, note = model_of(pack, source, name)
            if note:
                notes.append(note)
            if model is None:
                continue
            try:
                peer = PeerProcess(name, peer_command(name, model, inputs, threads, folder), folder)
            except PeerError as exc:
                notes.append(f"{name} is left out: {exc}")
                continue
            stack.callback(peer.close)
            resident_peers.append(ResidentPeer(peer, pack.manifest))
        yield resident_peers


def _trace(contenders: Sequence[Streamed], inputs: Arrays, trace: TraceSink, count: int) -> None:
    """Trace ``count`` sweeps of each of ``contenders``, taking turns."""
    sweeps: dict[str, list[list[TraceEvent]]] = {each.name: [] for each in contenders}
    for _ in range(count):
        for each in contenders:
            events: list[TraceEvent] = []
            each.engine.run(inputs, record=events.append)
            each.settle()
            sweeps[each.name].append(events)
    for each in contenders:
        assert each.planned is not None
        trace(each.planned, sweeps[each.name])
