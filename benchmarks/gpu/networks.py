"""Whole networks on the GPU: preloaded beside PyTorch, and streamed at the speed of a disk."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.gpu.torch_model import TorchModel
from loader.pool.pool import ReadPool
from loader.readers.disk import REAL_DISK, Disk, Pace, PacedReader
from loader.readers.fakes import MemoryReader
from models import zoo
from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import Pack, open_pack
from pipeline.devices.cuda.device import CudaDevice
from pipeline.devices.find import device_measure
from pipeline.execution.engine import Engine
from pipeline.execution.opened import opened
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import LEAST, EnginePlanResult, Wanted
from pipeline.measuring.sweeps import random_inputs
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Plan
from pipeline.profiles.profile import Profile
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.trace import TraceEvent
from pipeline.timing.durations import Services, services

_WARM_UP = 3
_PART_OF_WEIGHTS = 0.1
# Budgets of a network on rows, the smallest and one for all weights among them.
_BUDGETS = 4


def build(name: str, side: int, folder: Path, device: CudaDevice) -> tuple[Path, Pack]:
    """Return a network of the zoo as an ONNX file and as a pack for ``device``."""
    source = folder / f"{name}.onnx"
    zoo.build(name, source, side)
    options = CompileOptions(target=device.target, measure=device_measure(device.target))
    return source, open_pack(compile_onnx(source, folder / "packs" / name, options), device.target)


def memory_disk(pack: Pack, bytes_per_second: float) -> Disk:
    """Return a disk of that speed that has the weights of ``pack`` in memory."""
    content, pace = pack.weights_path.read_bytes(), Pace(bytes_per_second)

    def opened(path: Path) -> PacedReader:
        return PacedReader(MemoryReader(content), pace)

    return Disk(opened, opened, bytes_per_second)


@contextmanager
def opened_on(
    program: Program, plan: Plan, device: CudaDevice, disk: Disk = REAL_DISK
) -> Iterator[Engine]:
    """Open an engine whose weights lie on ``disk``."""
    reader = disk.open(program.pack.weights_path)
    with closing(ReadPool()) as pool, opened(program, plan, device, pool, reader) as engine:
        yield engine


def preloaded(source: Path, pack: Pack, device: CudaDevice, runs: int) -> dict[str, Any]:
    """Measure ``pre`` and PyTorch in both layouts, taking turns; seconds, without moving the image.

    Raises:
        ImportError: PyTorch is missing. ValueError: it lacks an operator.
    """
    import torch

    program = prepare(pack, device)
    inputs = random_inputs(program)
    image = torch.from_numpy(next(iter(inputs.values())))
    sides = {"torch_nchw": TorchModel(source, False), "torch_nhwc": TorchModel(source, True)}
    on_gpu = image.cuda()
    samples: dict[str, list[float]] = {name: [] for name in ("ours", *sides)}
    outputs: dict[str, list[np.ndarray[Any, Any]]] = {}
    plan = make_plan(program, ARCHITECTURES["pre"])
    with opened_on(program, plan, device) as engine:
        for turn in range(_WARM_UP + runs):
            answer, statistics = engine.run(inputs)
            outputs["ours"] = list(answer.values())
            spent = {"ours": statistics.delay_seconds}
            for name, model in sides.items():
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda.synchronize()
                start.record()
                results = model(on_gpu)
                end.record()
                end.synchronize()
                spent[name] = float(start.elapsed_time(end)) / 1e3
                outputs[name] = [result.cpu().numpy() for result in results]
            if turn >= _WARM_UP:
                for name, seconds in spent.items():
                    samples[name].append(seconds)
    milliseconds = {name: 1e3 * median(values) for name, values in samples.items()}
    errors = [
        float(np.abs(one - other).max() / np.abs(other).max())
        for one, other in zip(outputs["ours"], outputs["torch_nchw"], strict=True)
    ]
    best = min(milliseconds["torch_nchw"], milliseconds["torch_nhwc"])
    return {**milliseconds, "ratio_to_torch": milliseconds["ours"] / best, "error": max(errors)}


@dataclass(frozen=True)
class _Measured:
    """A plan that took turns with others: its median delay, what the driver counted, one sweep."""

    delay_seconds: float
    driver_bytes: int
    answer: dict[str, np.ndarray[Any, Any]]
    events: list[TraceEvent]


def _taking_turns(
    program: Program,
    device: CudaDevice,
    found: Mapping[str, EnginePlanResult],
    disk: Disk,
    runs: int,
) -> dict[str, _Measured]:
    """Measure each plan, all of them open."""
    inputs = random_inputs(program)
    samples: dict[str, list[float]] = {name: [] for name in found}
    measured = {}
    with ExitStack() as stack:
        engines, used = {}, {}
        for name, fitted in found.items():
            before = device.driver.memory_info()[0]
            engines[name] = stack.enter_context(opened_on(program, fitted.plan, device, disk))
            used[name] = before - device.driver.memory_info()[0]
        for turn in range(_WARM_UP + runs):
            for name, engine in engines.items():
                _, statistics = engine.run(inputs)
                engine.settle()
                if turn >= _WARM_UP:
                    samples[name].append(statistics.delay_seconds)
        for name, engine in engines.items():
            events: list[TraceEvent] = []
            answer, _ = engine.run(inputs, record=events.append)
            measured[name] = _Measured(median(samples[name]), used[name], answer, events)
    return measured


def pipelines(
    pack: Pack,
    device: CudaDevice,
    profile: Profile,
    names: Sequence[str],
    disk: Disk,
    runs: int,
) -> tuple[list[dict[str, Any]], dict[str, tuple[Plan, list[TraceEvent]]]]:
    """Measure architectures, taking turns; return rows and one sweep of each.

    ``profile`` was measured on ``disk``.
    """
    program = prepare(pack, device)
    found = {name: _fit(program, device, name, profile) for name in names}
    measured = _taking_turns(program, device, found, disk, runs)
    rows = [_row(name, found[name], measured) for name in names]
    sweeps = {name: (found[name].plan, measured[name].events) for name in names}
    return rows, sweeps


def _fit(program: Program, device: CudaDevice, name: str, profile: Profile) -> EnginePlanResult:
    architecture = device.adapt(ARCHITECTURES[name])
    limit = int(program.weight_bytes * _PART_OF_WEIGHTS) if name == "auto" else None
    return fit(program, architecture, Wanted(weight_bytes=limit), profile)


def on_rows(
    pack: Pack, device: CudaDevice, profile: Profile, disk: Disk, runs: int
) -> list[dict[str, Any]]:
    """Measure plans from the smallest budget to all weights in memory, taking turns.

    Budgets between the two are in equal ratios. ``difference``: the largest from the answer of ``pre``,
    beside its largest number.
    """
    program = prepare(pack, device)
    auto = device.adapt(ARCHITECTURES["auto"])
    plans = {
        "pre": _fit(program, device, "pre", profile),
        "least": fit(program, auto, LEAST, profile),
    }
    whole, least = (plans[name].plan.total_bytes for name in ("pre", "least"))
    for part in range(1, _BUDGETS):
        budget = int(least * (whole / least) ** (part / _BUDGETS))
        plans[f"{budget / 2**20:.1f} MiB"] = fit(program, auto, Wanted(total_bytes=budget), profile)
    measured = _taking_turns(program, device, plans, disk, runs)
    expected = measured["pre"].answer
    return [
        {
            "budget": name,
            "total_bytes": fitted.plan.total_bytes,
            "regions": len(fitted.plan.choice.regions),
            "steps": len(fitted.plan.steps),
            "read_bytes": fitted.plan.read_bytes,
            **_figures(fitted, measured[name]),
            "difference": max(
                float(np.abs(array - expected[key]).max() / np.abs(expected[key]).max())
                for key, array in measured[name].answer.items()
            ),
        }
        for name, fitted in plans.items()
    ]


def _figures(fitted: EnginePlanResult, measured: _Measured) -> dict[str, Any]:
    """Return what is said of every plan: of the device's own memory, and of its delay."""
    memory, seconds = fitted.plan.memory, fitted.predicted_seconds
    ring = memory["ring"] if fitted.plan.architecture.copies else 0
    own = ring + sum(memory[kind] for kind in ("resident", "arena", "scratch"))
    return {
        "delay_ms": 1e3 * measured.delay_seconds,
        "predicted_ms": None if seconds is None else 1e3 * seconds,
        "planned_device_bytes": own,
        "driver_bytes": measured.driver_bytes,
    }


def _row(name: str, fitted: EnginePlanResult, measured: Mapping[str, _Measured]) -> dict[str, Any]:
    plan, own, pre = fitted.plan, measured[name], measured["pre"]
    return {
        "architecture": name,
        **_figures(fitted, own),
        "ratio_to_pre": own.delay_seconds / pre.delay_seconds,
        "weight_bytes": plan.weight_bytes,
        "equation_bytes": plan.equation_bytes,
        "together_ms": 1e3 * _together(services(plan.stages, own.events, plan.choice.depth)),
        "equal_to_pre": all(
            np.array_equal(array, pre.answer[key]) for key, array in own.answer.items()
        ),
    }


def _together(served: Services) -> float:
    """Return for how many seconds every stage had something in service."""
    moments = sorted(
        {moment for row in served for item in row if item for moment in (item.start, item.end)}
    )
    return sum(
        end - start
        for start, end in pairwise(moments)
        if all(any(item and item.start <= start < item.end for item in row) for row in served)
    )


def sweeping_growth(pack: Pack, device: CudaDevice, sweeps: int) -> dict[str, int]:
    """Return how many bytes of device and host memory ``sweeps`` inferences leave behind."""
    program = prepare(pack, device)
    inputs = random_inputs(program)
    plan = make_plan(program, ARCHITECTURES["async"])
    with opened_on(program, plan, device, memory_disk(pack, inf)) as engine:
        for _ in range(_WARM_UP):
            engine.run(inputs)
        before = _memory(device)
        for _ in range(sweeps):
            engine.run(inputs)
        after = _memory(device)
    return {
        "sweeps": sweeps,
        "device_bytes": after[0] - before[0],
        "host_bytes": after[1] - before[1],
    }


def _memory(device: CudaDevice) -> tuple[int, int]:
    free, total = device.driver.memory_info()
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return total - free, pages * 4096
