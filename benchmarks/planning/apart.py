"""Where a planned sweep loses time to ``pre``: its chunks, reading without a disk, and the disk.

Sweeps take turns, each round in another order: ``pre``; ``chunks``, all weights in memory but computed in
the chunks of the plan; ``no disk``, the plan with a reader that reads nothing, so that all threads, locks
and callbacks of reading are there and no byte is moved; ``streamed``, the plan. What each adds to the one
before is the median over the rounds. ``no disk`` computes with weights of other layers, and
its answers are not compared.

Run as ``python -m benchmarks.planning.apart PACK... [--weights 2] [--rounds 20]``: percent of the weights;
packs need a profile.
"""

import argparse
import json
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from loader.pool.pool import ReadPool
from loader.readers.files import DirectReader
from models.packs.pack import Pack, open_pack
from models.runtime.sessions import claim_process, wait_until_quiet
from pipeline.benchmark.configuration import BenchConfiguration, plan_configuration
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.execution.opened import opened
from pipeline.execution.statistics import SweepStatistics
from pipeline.measuring.sweeps import random_inputs
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile_file import load_profile
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES


class EmptyReader(DirectReader):
    """Reads nothing once ``rests`` is set; before that, a first sweep verifies what it brings."""

    rests = False

    def read_into(self, offset: int, target: memoryview) -> None:
        if not self.rests:
            super().read_into(offset, target)


def planned(program: Program, device: CpuDevice, percent: float) -> Plan:
    """Return the plan of ``auto`` in ``percent`` of the weights."""
    profile = load_profile(program.pack, this_machine(program.pack.weights_path, device))
    limit = int(sum(span.length for span in program.spans) * percent / 100)
    wanted = BenchConfiguration("auto", ARCHITECTURES["auto"], limit)
    return plan_configuration(program, wanted, profile=profile).plan


def measure(pack: Pack, percent: float, rounds: int) -> dict[str, Any]:
    """Return medians of one pack in milliseconds, and what each step adds."""
    device = CpuDevice()
    program = prepare(pack, device)
    plan, pre = planned(program, device, percent), ARCHITECTURES["pre"]
    chunked = make_plan(program, pre, choice=Choice(chunk_bytes=plan.choice.chunk_bytes))
    empty = EmptyReader(pack.weights_path)
    with ExitStack() as stack:
        pool = stack.enter_context(closing(ReadPool()))

        def engine(plan: Plan, reader: EmptyReader | None = None) -> Engine:
            return stack.enter_context(opened(program, plan, device, pool, reader))

        engines = {
            "pre": engine(make_plan(program, pre)),
            "chunks": engine(chunked),
            "no disk": engine(plan, empty),
            "streamed": engine(plan),
        }
        inputs = random_inputs(program)
        for each in engines.values():
            each.run(inputs)
            each.settle()
        empty.rests = True
        sweeps = _turns({name: _runner(each, inputs) for name, each in engines.items()}, rounds)
    delays = {name: [each.delay_seconds for each in swept] for name, swept in sweeps.items()}
    return {
        "model": pack.name,
        "kernels": len(plan.steps),
        "reads": len(plan.groups),
        "delay_ms": {name: 1e3 * median(each) for name, each in delays.items()},
        "stall_ms": {
            name: 1e3 * median(each.stall_seconds for each in swept)
            for name, swept in sweeps.items()
        },
        "adds_ms": {
            later: 1e3 * median(b - a for a, b in zip(delays[one], delays[later], strict=True))
            for one, later in zip(delays, list(delays)[1:], strict=False)
        },
    }


def _runner(engine: Engine, inputs: Any) -> Callable[[], SweepStatistics]:
    def run() -> SweepStatistics:
        statistics = engine.run(inputs)[1]
        engine.settle()
        wait_until_quiet()
        return statistics

    return run


def _turns(
    runners: dict[str, Callable[[], SweepStatistics]], rounds: int
) -> dict[str, list[SweepStatistics]]:
    sweeps: dict[str, list[SweepStatistics]] = {name: [] for name in runners}
    order, random = list(runners), Random(0)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            sweeps[name].append(runners[name]())
    return sweeps


def main() -> None:
    """Measure each pack and print JSON."""
    claim_process()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packs", nargs="+", type=Path, metavar="PACK")
    parser.add_argument("--weights", type=float, default=2.0, metavar="PERCENT")
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    found = [measure(open_pack(path), given.weights, given.rounds) for path in given.packs]
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
