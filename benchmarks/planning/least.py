"""What the smallest plan costs beside all memory: measured, and as ``layerstream inspect`` says.

``pre``, the smallest plan and the larger one that ``inspect`` names answer in turns, in one process; CPU
seconds are those of the process from the request until nothing of it runs.

Run as ``python -m benchmarks.planning.least PACK... [--sweeps 20]``; it prints a JSON document a pack.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from models.packs.pack import open_pack
from models.runtime.sessions import claim_process
from pipeline.benchmark.configuration import BenchConfiguration, PlannedConfiguration
from pipeline.benchmark.contenders import Samples, Streamed, take_turns
from pipeline.devices.cpu import CpuDevice
from pipeline.energy import find_meter
from pipeline.execution.opened import opened
from pipeline.fitting.fit import fit
from pipeline.fitting.trade_off import costs_of_least
from pipeline.fitting.wanted import LEAST, NOTHING, Fitted, Wanted
from pipeline.measuring.sweeps import random_inputs
from pipeline.planning.plan import Plan
from pipeline.profiles.found_plans_file import plans_of
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES


def main() -> None:
    """Measure each pack."""
    claim_process()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packs", nargs="+", type=Path, metavar="PACK")
    parser.add_argument("--sweeps", type=int, default=20)
    arguments = parser.parse_args()
    for path in arguments.packs:
        device = CpuDevice()
        program = prepare(open_pack(path), device)
        plans, said = _plans(program)
        samples = measured(program, device, plans, arguments.sweeps)
        print(
            json.dumps(
                {"model": program.name, "plans": list(_rows(plans, samples, said))}, indent=2
            )
        )


def _plans(program: Program) -> tuple[list[Plan], list[float]]:
    """Return ``pre``, the smallest plan, and a larger one if there is one; and what ``inspect`` says."""
    known, auto = plans_of(program.pack), ARCHITECTURES["auto"]
    least = fit(program, auto, LEAST, None, known).plan
    costs = costs_of_least(program, least)
    plans = [fit(program, ARCHITECTURES["pre"], NOTHING).plan, least]
    limits = [Wanted(total_bytes=cost.total_bytes) for cost in costs[1:]]
    plans += [fit(program, auto, limit, None, known).plan for limit in limits]
    known.save()
    return plans, [1.0, *(cost.times for cost in costs)]


def measured(
    program: Program, device: CpuDevice, plans: Sequence[Plan], sweeps: int
) -> list[Samples]:
    """Return samples of ``plans``, which take turns."""
    inputs = random_inputs(program)
    with ExitStack() as stack:
        contenders = [
            Streamed(
                PlannedConfiguration(
                    BenchConfiguration(plan.architecture.name, plan.architecture), Fitted(plan)
                ),
                stack.enter_context(opened(program, plan, device)),
                inputs,
            )
            for plan in plans
        ]
        return take_turns(contenders, sweeps, find_meter())


def _rows(
    plans: Sequence[Plan], samples: Sequence[Samples], said: Sequence[float]
) -> Iterator[dict[str, Any]]:
    cpu, delay = median(samples[0].cpu), median(samples[0].delays)
    for plan, found, times in zip(plans, samples, said, strict=True):
        yield {
            "architecture": plan.architecture.name,
            "total_bytes": plan.total_bytes,
            "regions": len(plan.choice.regions),
            "steps": len(plan.steps),
            "cpu_ms": 1e3 * median(found.cpu),
            "delay_ms": 1e3 * median(found.delays),
            "cpu_times": median(found.cpu) / cpu,
            "delay_times": median(found.delays) / delay,
            "inspect_times": times,
        }


if __name__ == "__main__":
    main()
