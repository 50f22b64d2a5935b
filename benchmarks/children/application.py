"""An application with one plan a model, run as ``benchmarks.children.application JOB.json RESULT.json``.

The job has ``models`` (pack, architecture, cuts, a choice for each partition, placement, inputs), ``turns``
(sets of models that share an arena), ``sweeps``, and ``one_core``: a model that is not cut runs on one. The
result has what was planned, what was allocated, delays, and checksums.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from benchmarks.planning.rivals import placed_plan
from loader.cores import cores_for, pinned
from loader.pool.pool import ReadPool
from models.packs.manifest import checksum
from models.packs.pack import open_pack
from models.runtime.sessions import claim_process
from papers.applications.ours.members import joined
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.answering import Answering
from pipeline.execution.given import Arrays
from pipeline.execution.leases import ArenaLease, SharedArena
from pipeline.execution.opened import open_engine, open_pipeline
from pipeline.peers.child import anonymous_bytes, load_inputs
from pipeline.planning.make import make_plan
from pipeline.planning.plan import AnyPlan, Choice, PartitionedPlan
from pipeline.program.partitions import Cuts
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES

CHOICES = TypeAdapter(Choice)
_FRAMES_A_SWEEP = 4


def planned(program: Program, device: CpuDevice, item: dict[str, Any]) -> AnyPlan:
    """Return the plan that the job says."""
    architecture = device.adapt(ARCHITECTURES[item["architecture"]])
    parts = Cuts(program).parts(item["cuts"])
    if item["placement"]:
        plans = [placed_plan(part, item["placement"]) for part in parts]
    else:
        choices = map(CHOICES.validate_python, item["choices"])
        pairs = zip(parts, choices, strict=True)
        plans = [make_plan(part, architecture, choice=choice) for part, choice in pairs]
    return joined(program, item["cuts"], plans)


def leases(
    device: CpuDevice, plans: list[AnyPlan], turns: list[list[int]], stack: ExitStack
) -> list[Callable[[], ArenaLease] | None]:
    """Return what makes the lease of each model's arena; None: its own."""
    found: list[Callable[[], ArenaLease] | None] = [None] * len(plans)
    for models in turns:
        space = device.reserve(max(plans[model].arena_bytes for model in models) + (1 << 12))
        if len(models) > 1 and space is not None:
            arena = SharedArena(space)
            stack.callback(arena.close)
            for model in models:
                found[model] = partial(arena.join, plans[model].arena_bytes)
    return found


def measured(engine: Answering, inputs: Path, sweeps: int, cores: Sequence[int]) -> dict[str, Any]:
    """Run one model so often, one that is not cut on ``cores``; return its delay and checksums."""
    arrays = load_inputs(inputs)
    if engine.callers > 1:
        answers, seconds = streamed(engine, arrays, _FRAMES_A_SWEEP * sweeps)
    else:
        with pinned(cores):
            runs = [answered(engine, arrays) for _ in range(1 + sweeps)]
        answers = {outputs for outputs, _ in runs}
        seconds = median(took for _, took in runs[1:])
    outputs = " or ".join(sorted(answers))
    return {"outputs": outputs, "seconds": seconds, "memory": engine.statistics().memory}


def checksums(outputs: Arrays) -> str:
    """Return what distinguishes answers; copies of them would be memory of the request, not of the plan."""
    return " ".join(checksum(np.ascontiguousarray(outputs[name]).data) for name in sorted(outputs))


def answered(engine: Answering, arrays: Arrays) -> tuple[str, float]:
    """Return checksums of one answer, and the delay of its request: predictions are of requests."""
    began = time.perf_counter()
    outputs = engine.answer(arrays, checksums)[0]
    return outputs, time.perf_counter() - began


def streamed(engine: Answering, arrays: Arrays, frames: int) -> tuple[set[str], float]:
    """Answer ``frames`` as fast as they get through; return what answers there were, and the time of one.

    It is the time from one to the next, once the line is full.
    """
    ended: list[float] = []

    def answer(_: int) -> str:
        outputs = engine.answer(arrays, checksums)[0]
        ended.append(time.perf_counter())
        return outputs

    with ThreadPoolExecutor(engine.callers) as threads:
        answers = set(threads.map(answer, range(engine.callers + frames)))
    return answers, (ended[-1] - ended[engine.callers - 1]) / frames


def opened(
    stack: ExitStack,
    program: Program,
    plan: AnyPlan,
    device: CpuDevice,
    pool: ReadPool,
    lease: Callable[[], ArenaLease] | None,
) -> Answering:
    """Return what answers with ``plan``, until ``stack`` is closed."""
    engine: Answering
    if isinstance(plan, PartitionedPlan):
        count = len(plan.partitions)
        cores = cores_for(count)
        engine = open_pipeline(program, plan, [device] * count, pool, cores=cores)
    else:
        engine = open_engine(program, plan, device, pool, lease=lease)
    stack.callback(engine.close)
    return engine


def main() -> None:
    """Plan, run, write."""
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    claim_process()
    device = CpuDevice(1 if job["one_core"] else None)
    programs = [prepare(open_pack(Path(item["pack"])), device) for item in job["models"]]
    plans = [
        planned(each, device, item) for each, item in zip(programs, job["models"], strict=True)
    ]
    base = anonymous_bytes()
    with ExitStack() as stack:
        pool = ReadPool()
        stack.callback(pool.close)
        shared = leases(device, plans, job["turns"], stack)
        engines = [
            opened(stack, program, plan, device, pool, lease)
            for program, plan, lease in zip(programs, plans, shared, strict=True)
        ]
        cores = cores_for(1) if job["one_core"] else ()
        rows = [
            measured(engine, Path(item["inputs"]), job["sweeps"], cores)
            for engine, item in zip(engines, job["models"], strict=True)
        ]
    result = {
        "base_bytes": base,
        "planned": [plan.memory for plan in plans],
        "allocated": [row["memory"] for row in rows],
        "seconds": [row["seconds"] for row in rows],
        "outputs": [row["outputs"] for row in rows],
    }
    Path(sys.argv[2]).write_text(json.dumps(result), "utf-8")


if __name__ == "__main__":
    main()
