"""Delays of one network whose weights are stored in several ways, through the same ring, taking turns.

Run as ``python -m benchmarks.stored.delays PACK... [--pace 3.5GB/s] [--ring 16MiB] [--reads 1MiB 4MiB]
[--turns 9]``: the first pack is what the others are compared with. ``--reads``: the most of one read, as
in memory; without it what the planner takes. Prints Markdown: medians, and the bytes that a read brings.
"""

import argparse
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.engines import Engines, sweep
from benchmarks.turns import in_turns
from loader.readers.disk import REAL_DISK, paced_disk
from models.packs.pack import open_pack
from models.runtime.sessions import claim_process
from models.sizes import format_size, parse_size
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.execution.statistics import SweepStatistics
from pipeline.measuring.sweeps import random_inputs
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES

# So many sweeps bring their bytes even from a paced disk.
_WARM_UP = 3


def main() -> None:
    """Print a row for each pack and size of reads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pack", nargs="+", type=Path)
    parser.add_argument("--pace")
    parser.add_argument("--ring", type=parse_size, default=16 << 20)
    parser.add_argument("--reads", type=parse_size, nargs="*", default=[None])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--architecture", default="2s", choices=ARCHITECTURES)
    options = parser.parse_args()
    claim_process()
    disk = paced_disk(parse_size(options.pace.removesuffix("/s"))) if options.pace else REAL_DISK
    where = options.pace or "this machine's disk"
    engines: list[Engine] = []
    with closing(CpuDevice()) as device, Engines(device) as opened:
        players: dict[str, Callable[[], SweepStatistics]] = {}
        for folder in options.pack:
            pack = open_pack(folder)
            program, inputs = Program.as_compiled(pack), random_inputs(pack.manifest)
            for read_bytes in options.reads:
                choice = Choice(ring_bytes=options.ring, read_bytes=read_bytes)
                plan = make_plan(program, ARCHITECTURES[options.architecture], choice=choice)
                engines.append(opened.open(program, plan, disk.open(pack.weights_path)))
                players[str(len(players))] = partial(sweep, engines[-1], inputs)
        sweeps = in_turns(players, options.turns, _WARM_UP)
    delays = [median(each.delay_seconds for each in swept) for swept in sweeps.values()]
    for engine, delay in zip(engines, delays, strict=True):
        plan, pack = engine.plan, engine.program.pack
        read = max((read.n_bytes for read in plan.reads), default=0)
        print(
            f"| {pack.name} {pack.manifest.store} | {where} | "
            f"{format_size(read)} x {len(plan.reads)} | {1e3 * delay:.1f} | {delay / delays[0]:.2f} |"
        )


if __name__ == "__main__":
    main()
