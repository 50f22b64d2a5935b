"""An application with one plan a model, run as ``benchmarks.children.application JOB.json RESULT.json``.

The job has ``models`` (pack, architecture, choice, placement, inputs), ``turns`` (sets of models that share
an arena) and ``sweeps``. The result has what was planned, what was allocated, delays, and checksums.
"""

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from benchmarks.children.planned import anonymous_bytes, checksums
from loader.pool.pool import ReadPool
from models.packs.pack import Pack, open_pack
from models.runtime.sessions import claim_process
from pipeline.applications.rivals import placed_plan
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.execution.leases import Lease, SharedArena
from pipeline.execution.opened import open_engine
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.schedule.architectures import ARCHITECTURES

CHOICES = TypeAdapter(Choice)


def planned(pack: Pack, device: CpuDevice, item: dict[str, Any]) -> Plan:
    """Return the plan that the job says."""
    if item["placement"]:
        return placed_plan(pack.manifest, item["placement"])
    architecture = device.adapt(ARCHITECTURES[item["architecture"]])
    choice = CHOICES.validate_python(item["choice"])
    return make_plan(pack.manifest, architecture, choice=choice)


def leases(
    device: CpuDevice, plans: list[Plan], turns: list[list[int]], stack: ExitStack
) -> list[Callable[[], Lease] | None]:
    """Return what makes the lease of each model's arena; None: its own."""
    found: list[Callable[[], Lease] | None] = [None] * len(plans)
    for models in turns:
        space = device.reserve(max(plans[model].arena_bytes for model in models) + (1 << 12))
        if len(models) > 1 and space is not None:
            arena = SharedArena(space)
            stack.callback(arena.close)
            for model in models:
                found[model] = partial(arena.join, plans[model].arena_bytes)
    return found


def measured(engine: Engine, inputs: Path, sweeps: int) -> dict[str, Any]:
    """Run one model so often; return its delay and checksums of its outputs."""
    with np.load(inputs) as given:
        arrays = dict(given)
    outputs, _ = engine.answer(arrays, checksums)
    delays = [engine.answer(arrays, checksums)[1].delay_seconds for _ in range(sweeps)]
    return {"outputs": outputs, "seconds": median(delays), "memory": engine.statistics().memory}


def main() -> None:
    """Plan, run, write."""
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    claim_process()
    device = CpuDevice()
    packs = [device.fitted(open_pack(Path(item["pack"]))) for item in job["models"]]
    plans = [planned(pack, device, item) for pack, item in zip(packs, job["models"], strict=True)]
    base = anonymous_bytes()
    with ExitStack() as stack:
        pool = ReadPool()
        stack.callback(pool.close)
        shared = leases(device, plans, job["turns"], stack)
        engines = []
        for pack, plan, lease in zip(packs, plans, shared, strict=True):
            engine = open_engine(pack, plan, device, pool, lease=lease)
            stack.callback(engine.close)
            engines.append(engine)
        rows = [
            measured(engine, Path(item["inputs"]), job["sweeps"])
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
