"""Architectures of one pack beside ONNX Runtime with all weights resident, interleaved in one run."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.files import open_reader
from loader.pool import ReadPool
from models.heap import heap_bytes
from models.manifest import Manifest
from models.pack import Pack
from models.sessions import open_resident
from models.target import host_target
from pipeline.architectures import ARCHITECTURES
from pipeline.devices.cpu import CpuDevice
from pipeline.energy import Energy, EnergyMeter, find_meter
from pipeline.engine import Engine
from pipeline.planning.plan import make_plan

RESIDENT = "onnxruntime-resident"
_WARM_UP = 2


@dataclass
class _Contender:
    """One row: memory figures, and a call that runs once and returns the stall in seconds."""

    name: str
    run: Callable[[], float]
    memory: dict[str, int]
    read_bytes: int = 0
    delays: list[float] = field(default_factory=list)
    stalls: list[float] = field(default_factory=list)
    energies: list[Energy] = field(default_factory=list)


def bench_pipeline(
    pack: Pack,
    architectures: Sequence[str],
    iterations: int,
    ring_bytes: int | None = None,
    threads: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
    *,
    meter: EnergyMeter | None = None,
) -> dict[str, Any]:
    """Measure each architecture and the resident peer ``iterations`` times, taking turns.

    ``pre`` is always among the rows. The peer runs the pack's own model.onnx with the same threads.
    Energy is measured by ``meter``, by default whatever this machine has.
    Returns the keys of ``bench pipeline --json``; delays in milliseconds, energy in joules.
    """
    device = CpuDevice(threads)
    meter = meter or find_meter()
    inputs = random_inputs(pack.manifest)
    names = list(dict.fromkeys(("pre", *architectures)))
    pool = ReadPool()
    engines: list[Engine] = []
    try:
        contenders = []
        for name in names:
            plan = make_plan(pack.manifest, ARCHITECTURES[name], ring_bytes)
            engine = Engine(pack, plan, device, pool, open_reader(pack.weights_path))
            engines.append(engine)
            engine.open()
            contenders.append(_streamed(name, engine, inputs))
        contenders.append(_resident(pack, inputs))
        _take_turns(contenders, iterations, progress, meter)
    finally:
        for engine in engines:
            engine.close()
        pool.close()
    return {
        "model": pack.name,
        "resolution": _resolution(pack.manifest),
        "machine": machine(device.threads),
        "iterations": iterations,
        "energy": _missing(contenders) or meter.source,
        "rows": _rows(contenders),
    }


def random_inputs(manifest: Manifest) -> dict[str, NDArray[Any]]:
    """Return one input set: standard normal numbers, or small integers, from a fixed seed."""
    generator = np.random.default_rng(0)
    inputs: dict[str, NDArray[Any]] = {}
    for port in manifest.inputs:
        if np.dtype(port.dtype).kind == "f":
            inputs[port.name] = generator.standard_normal(port.shape).astype(port.dtype)
        else:
            inputs[port.name] = generator.integers(0, 2, port.shape).astype(port.dtype)
    return inputs


def machine(threads: int) -> dict[str, Any]:
    """Return what the figures were measured on."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "isa": host_target().isa,
        "onnxruntime": host_target().onnxruntime,
        "system": f"{platform.system()} {platform.release()}",
    }


def _streamed(name: str, engine: Engine, inputs: dict[str, NDArray[Any]]) -> _Contender:
    plan = engine.plan
    memory = {
        "weight_bytes": plan.weight_bytes,
        "arena_bytes": plan.arena_bytes,
        "scratch_bytes": plan.scratch_bytes,
    }
    return _Contender(name, lambda: engine.run(inputs)[1].stall_seconds, memory, plan.read_bytes)


def _resident(pack: Pack, inputs: dict[str, NDArray[Any]]) -> _Contender:
    session = open_resident(str(pack.model_path))

    def run() -> float:
        session.run(None, inputs)
        return 0.0

    before = heap_bytes() or 0
    run()
    memory = {
        "weight_bytes": pack.manifest.weight_bytes,
        # What its own allocator took for activations and kept.
        "arena_bytes": max((heap_bytes() or 0) - before, 0),
        "scratch_bytes": 0,
    }
    return _Contender(RESIDENT, run, memory)


def _take_turns(
    contenders: Sequence[_Contender],
    iterations: int,
    progress: Callable[[int], None],
    meter: EnergyMeter,
) -> None:
    for turn in range(-_WARM_UP, iterations):
        # The order rotates: what runs after a cold neighbour would always pay for it.
        first = turn % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            with meter.measure() as energy:
                started = time.perf_counter()
                stall = contender.run()
                delay = time.perf_counter() - started
            if turn >= 0:
                contender.delays.append(delay)
                contender.stalls.append(stall)
                contender.energies.append(energy)
        progress(turn + 1)


def _rows(contenders: Sequence[_Contender]) -> list[dict[str, Any]]:
    pre = statistics.median(next(item.delays for item in contenders if item.name == "pre"))
    return [
        {
            "architecture": item.name,
            **item.memory,
            "delay_ms": _spread([delay * 1e3 for delay in item.delays]),
            "ratio_to_pre": statistics.median(item.delays) / pre,
            "stall_ms": statistics.median(item.stalls) * 1e3,
            "read_bytes": item.read_bytes,
            # All rows or none: rows with different runs missing would not compare.
            "energy_joules": None if _missing(contenders) else _spread(_joules(item)),
        }
        for item in contenders
    ]


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": statistics.median(values),
        "p95": float(np.percentile(values, 95)),
        "max": max(values),
    }


def _joules(contender: _Contender) -> list[float]:
    return [energy.joules for energy in contender.energies if energy.joules is not None]


def _missing(contenders: Sequence[_Contender]) -> str | None:
    """Return why a run has no energy, None where all have."""
    energies = (energy for item in contenders for energy in item.energies)
    return next((energy.source for energy in energies if energy.joules is None), None)


def _resolution(manifest: Manifest) -> int | None:
    shape = manifest.inputs[0].shape if manifest.inputs else ()
    return shape[-1] if len(shape) == 4 else None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
