"""Predictions against the engine: delays of every architecture, expected and measured, taking turns.

``python -m benchmarks.simulator PACK... [--profile]``; exit 1 when a prediction is off by more than 7 %.
Machines drift: ``beside pre`` compares ratios to ``pre`` of the same run, and ``replayed`` sweeps with what
the schedule makes of their own operations' times.
"""

import argparse
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from loader.pool.pool import ReadPool
from models.packs.pack import Pack, open_pack
from models.runtime.sessions import claim_process
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.execution.given import Arrays
from pipeline.execution.opened import opened
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import DelayPrediction, Wanted
from pipeline.measuring.profiling import profile_pack
from pipeline.measuring.sweeps import random_inputs
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile import Profile
from pipeline.profiles.profile_file import load_profile, save_profile
from pipeline.program.prepare import prepare
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.trace import TraceEvent
from pipeline.timing.durations import Durations, services
from pipeline.timing.timeline import timeline

_WANTED = 0.07
_WARM_UP = 2


@dataclass
class _Row:
    name: str
    engine: Engine
    prediction: DelayPrediction
    delays: list[float] = field(default_factory=list)
    replayed: list[float] = field(default_factory=list)

    def run(self, inputs: Arrays) -> None:
        """Run once; note the delay, and what the schedule makes of the times in its trace."""
        plan, events = self.engine.plan, list[TraceEvent]()
        delay = self.engine.run(inputs, record=events.append)[1].delay_seconds
        rows = services(plan.stages, events, plan.choice.depth)
        seconds = tuple(tuple(each.seconds if each else 0.0 for each in row) for row in rows)
        again = timeline(plan.stages, Durations(seconds, plan.choice.depth)).delay_seconds
        self.delays.append(delay)
        self.replayed.append(again / delay - 1)

    @property
    def measured(self) -> float:
        return median(self.delays)


def _profile(pack: Pack, threads: int | None, anew: bool) -> Profile:
    if anew:
        profile = profile_pack(pack, CpuDevice(threads))
        save_profile(profile, pack)
        return profile
    return load_profile(pack, this_machine(pack.weights_path, CpuDevice(threads)))


def compare(pack: Pack, profile: Profile, arguments: argparse.Namespace) -> list[_Row]:
    """Run every architecture ``arguments.iterations`` times, taking turns."""
    inputs = random_inputs(pack.manifest)
    pool, device = ReadPool(), CpuDevice(arguments.threads)
    program = prepare(pack, device)
    limit = int(program.weight_bytes * arguments.weights / 100)
    with ExitStack() as stack:
        stack.callback(pool.close)
        rows = []
        for name in arguments.architectures.split(","):
            architecture = ARCHITECTURES[name]
            wanted = Wanted(weight_bytes=limit if architecture.tuned == "auto" else None)
            fitted = fit(program, architecture, wanted, profile)
            assert fitted.prediction is not None
            engine = stack.enter_context(opened(program, fitted.plan, device, pool))
            rows.append(_Row(name, engine, fitted.prediction))
        for turn in range(-_WARM_UP, arguments.iterations):
            first = turn % len(rows)
            for row in (*rows[first:], *rows[:first]):
                row.run(inputs)
                if turn < 0:
                    row.delays.clear()
                    row.replayed.clear()
    return rows


def _print(pack: Pack, rows: list[_Row]) -> float:
    """Print a table; return the largest error."""
    print(f"{pack.name}\n{'':10} predicted  measured    error  beside pre  replayed")
    pre = next((row for row in rows if row.name == "pre"), rows[0])
    worst = 0.0
    for row in rows:
        predicted, measured = row.prediction.sweep_seconds, row.measured
        error = predicted / measured - 1
        beside = (predicted / pre.prediction.sweep_seconds) / (measured / pre.measured) - 1
        worst = max(worst, abs(error))
        figures = f"{predicted * 1e3:8.1f}  {measured * 1e3:8.1f}  {error:+7.1%}  {beside:+10.1%}"
        print(f"{row.name:10} {figures}  {median(row.replayed):+8.1%}", flush=True)
    return worst


def main() -> None:
    """Run the benchmark on the packs given."""
    claim_process()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packs", nargs="+", type=Path, metavar="PACK")
    parser.add_argument("--architectures", default=",".join(ARCHITECTURES))
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--weights", type=float, default=5.0, help="percent, for auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--profile", action="store_true", help="profile the packs first")
    arguments = parser.parse_args()
    worst = 0.0
    for path in arguments.packs:
        pack = open_pack(path)
        profile = _profile(pack, arguments.threads, arguments.profile)
        worst = max(worst, _print(pack, compare(pack, profile, arguments)))
    print(f"largest error {worst:.1%}, wanted at most {_WANTED:.0%}")
    sys.exit(worst > _WANTED)


if __name__ == "__main__":
    main()
