"""Operators on elements: in ONNX Runtime, and by native kernels on its threads.

``python -m benchmarks.elementwise PACK [--rounds 20] [--sleeping]``, on a machine that nothing else uses.
Engines with all weights in memory take turns, in another order each round. Prints medians: milliseconds of
a sweep and CPU milliseconds of the process, apart for the steps that have a native kernel (``chains``) and
for all others; and by how much the outputs differ, relative to the largest value.
``--sleeping``: ONNX Runtime's threads sleep between kernels, as in a process of another program; the
command line's spin for a while.
"""

import argparse
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.engines import Engines
from benchmarks.turns import end, in_turns
from models.packs.folders import find_pack
from models.packs.pack import Pack, open_pack
from models.runtime.sessions import claim_process
from pipeline.benchmark.run import relative_error
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.execution.given import copies
from pipeline.measuring.sweeps import random_inputs
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Plan
from pipeline.program.kernels import Chain
from pipeline.program.prepare import prepare
from pipeline.program.program import PreparedPiece
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.trace import TraceEvent

#: Whether native.
_PLAYERS: Mapping[str, bool] = {"onnxruntime": False, "native": True}


def main() -> None:
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("pack", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sleeping", action="store_true")
    given = parser.parse_args()
    if not given.sleeping:
        claim_process()
    end(_measured(open_pack(find_pack(given.pack)), given.rounds))


def _measured(pack: Pack, rounds: int) -> dict[str, Any]:
    inputs = random_inputs(pack.manifest)
    devices = {name: CpuDevice(native=native) for name, native in _PLAYERS.items()}
    with Engines(devices["native"]) as opened:
        engines: dict[str, Engine] = {}
        for name, device in devices.items():
            opened.callback(device.close)
            program = prepare(pack, device)
            plan = make_plan(program, ARCHITECTURES["pre"])
            engines[name] = opened.open(program, plan, device=device)
        answers = {name: engine.answer(inputs, copies)[0] for name, engine in engines.items()}
        chains = _chains(engines["native"].plan)
        times = in_turns(
            {name: partial(_sweep, engine, inputs, chains) for name, engine in engines.items()},
            rounds,
        )
    return {
        "pack": pack.name,
        "rounds": rounds,
        "chains": sum(chains),
        "steps": len(chains),
        "difference": relative_error(answers["native"], answers["onnxruntime"]),
        "players": {
            name: {key: round(median(each[key] for each in runs), 2) for key in runs[0]}
            for name, runs in times.items()
        },
    }


def _chains(plan: Plan) -> list[bool]:
    """Return of each step whether it has a native kernel."""
    # No regions: nothing is on rows.
    steps = (step for step in plan.steps if isinstance(step, PreparedPiece))
    return [isinstance(step.kernel, Chain) for step in steps]


def _sweep(engine: Engine, inputs: Any, chains: list[bool]) -> dict[str, float]:
    events: list[TraceEvent] = []
    began, cpu_began = time.perf_counter(), time.process_time()
    engine.run(inputs, record=events.append)
    cpu, wall = time.process_time() - cpu_began, time.perf_counter() - began
    ends = [each.at for each in events if (each.what, each.stage) == ("complete", "kernel")]
    took = np.diff([0.0, *ends])
    in_chains = float(took[np.array(chains)].sum())
    return {
        "ms": 1e3 * wall,
        "cpu_ms": 1e3 * cpu,
        "chains_ms": 1e3 * in_chains,
        "others_ms": 1e3 * float(took.sum() - in_chains),
    }


if __name__ == "__main__":
    main()
