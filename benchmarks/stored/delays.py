"""Delays of one network whose weights are stored in several ways, through the same ring, taking turns.

Run as ``python -m benchmarks.stored.delays PACK... [--pace 3.5GB/s] [--ring 16MiB] [--reads 1MiB 4MiB]
[--turns 9]``: the first pack is what the others are compared with. ``--reads``: the most of one read, as
in memory; without it what the planner takes. Prints Markdown: medians, and the bytes that a read brings.
"""

import argparse
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from loader.pool.pool import ReadPool
from loader.readers.disk import REAL_DISK, paced_disk
from models.packs.pack import open_pack
from models.runtime.sessions import claim_process, wait_until_quiet
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.execution.given import Arrays
from pipeline.execution.opened import opened
from pipeline.measuring.sweeps import random_inputs
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from server.settings.sizes import format_size, parse_size

# So many sweeps bring their bytes even from a paced disk.
_WARM_UP = 3


@dataclass
class StoredContender:
    """A pack in an engine, and the seconds of its sweeps."""

    engine: Engine
    inputs: Arrays
    seconds: list[float] = field(default_factory=list)

    def turn(self) -> float:
        """Return the seconds of a sweep."""
        delay = self.engine.run(self.inputs)[1].delay_seconds
        self.engine.settle()
        wait_until_quiet()
        return delay


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
    with ExitStack() as stack:
        pool = ReadPool()
        stack.callback(pool.close)
        device = CpuDevice()
        stack.callback(device.close)
        contenders = []
        for folder in options.pack:
            pack = open_pack(folder)
            for read_bytes in options.reads:
                choice = Choice(ring_bytes=options.ring, read_bytes=read_bytes)
                plan = make_plan(
                    Program.as_compiled(pack), ARCHITECTURES[options.architecture], choice=choice
                )
                reader = stack.enter_context(closing(disk.open(pack.weights_path)))
                engine = stack.enter_context(
                    opened(Program.as_compiled(pack), plan, device, pool, reader)
                )
                contenders.append(StoredContender(engine, random_inputs(pack.manifest)))
        for contender in contenders:
            for _ in range(_WARM_UP):
                contender.turn()
        for _ in range(options.turns):
            for contender in contenders:
                contender.seconds.append(contender.turn())
    _print(contenders, options.pace or "this machine's disk")


def _print(contenders: list[StoredContender], disk: str) -> None:
    first = median(contenders[0].seconds)
    for each in contenders:
        plan, manifest = each.engine.plan, each.engine.program.pack.manifest
        read = max((group.read_bytes for group in plan.groups), default=0)
        print(
            f"| {each.engine.program.pack.name} {manifest.store} | {disk} | {format_size(read)} x "
            f"{len(plan.groups)} | {1e3 * median(each.seconds):.1f} | "
            f"{median(each.seconds) / first:.2f} |"
        )


if __name__ == "__main__":
    main()
