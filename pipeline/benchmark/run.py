"""The benchmark itself: open everybody, take turns, make the document."""

import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from pipeline.benchmark.contenders import Contender, ResidentPeer, Streamed
from pipeline.benchmark.rows import make_rows, missing_energy
from pipeline.benchmark.source import find_source, model_of
from pipeline.benchmark.turns import take_turns
from pipeline.devices.base import Device
from pipeline.devices.cpu import CpuDevice
from pipeline.energy.meter import EnergyMeter, find_meter
from pipeline.execution.given import Arrays
from pipeline.execution.opened import opened
from pipeline.measuring.sample_inputs import random_inputs
from pipeline.peers import PEERS
from pipeline.peers.peer import PeerError, PeerProcess, peer_command
from pipeline.profiles.found_plans_file import plans_of
from pipeline.profiles.machine import cpu_model
from pipeline.profiles.profile import Profile
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.trace import TraceEvent

PRE = BenchConfiguration("pre", ARCHITECTURES["pre"])

#: Receives a configuration's plan and the events of each of its sweeps that were traced.
TraceSink = Callable[[PlannedConfiguration, list[list[TraceEvent]]], None]


@dataclass(frozen=True)
class BenchOptions:
    """How to measure. ``source``: what the peers run; ``peers``: which of them.

    ``ring_bytes``: of architectures that nothing tunes. ``profile``: tuned ones are planned on it.
    ``device``: what computes; None: the CPU, one thread a core. ``disk``: what weights are read from.
    ``traced``: so many more sweeps of each, for who wants their traces.
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
        "rows": make_rows(samples, program.pack.manifest),
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
    return {each.configuration.label: found for each in planned if (found := of(each))}


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
        found = []
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
            found.append(ResidentPeer(peer, pack.manifest))
        yield found


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
