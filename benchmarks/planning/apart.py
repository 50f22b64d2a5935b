"""Where a planned sweep loses time to ``pre``: its chunks, reading without a disk, and the disk.

Sweeps take turns: ``pre``; ``beside a reader``, the same while a thread reads the weights file once, past
the page cache, into one buffer, and nothing waits for anything, so that only cores, memory and bus are
shared, which streaming costs at least; ``chunks``, all weights in memory but computed in the chunks of the
plan; ``no disk``, the plan with a reader that reads nothing, so that all threads, locks and callbacks of
reading are there and no byte is moved; ``streamed``, the plan. What each of the last three adds to the one
before is the median over the rounds. ``no disk`` computes with weights of other layers, and its answers are
not compared.

Run as ``python -m benchmarks.planning.apart PACK... [--weights 2] [--rounds 20]``: percent of the weights;
packs need a profile.
"""

import argparse
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.engines import Engines, sweep
from benchmarks.turns import end, in_turns
from loader.buffers import Buffer
from loader.cores import hasten
from loader.readers.disk import CHECKED, CorelessReader
from loader.readers.files import open_reader
from models.packs.pack import Pack, open_pack
from models.runtime.sessions import claim_process
from pipeline.benchmark.configuration import BenchConfiguration, plan_configuration
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.execution.given import Arrays
from pipeline.execution.statistics import SweepStatistics
from pipeline.measuring.sweeps import random_inputs
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.planning.streaming import READ_BYTES
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile_file import load_profile
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES

_STEPS = ("pre", "chunks", "no disk", "streamed")
# So many sweeps bring the bytes that are checked, what they read ahead included.
_WARM_UP = CHECKED + 1


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
    inputs = random_inputs(program)
    with Engines(device) as opened, closing(Buffer(READ_BYTES)) as buffer:
        engines = {
            "pre": opened.open(program, make_plan(program, pre)),
            "chunks": opened.open(program, chunked),
            "no disk": opened.open(program, plan, CorelessReader(open_reader(pack.weights_path))),
            "streamed": opened.open(program, plan),
        }
        players: dict[str, Callable[[], SweepStatistics]] = {
            name: partial(sweep, engine, inputs) for name, engine in engines.items()
        }
        players["beside a reader"] = partial(_beside_a_reader, engines["pre"], inputs, buffer)
        sweeps = in_turns(players, rounds, _WARM_UP)
    delays = {name: [each.delay_seconds for each in swept] for name, swept in sweeps.items()}
    return {
        "model": pack.name,
        "kernels": len(plan.steps),
        "reads": len(plan.reads),
        "delay_ms": {name: 1e3 * median(each) for name, each in delays.items()},
        "stall_ms": {
            name: 1e3 * median(each.stall_seconds for each in swept)
            for name, swept in sweeps.items()
        },
        "adds_ms": {
            later: 1e3 * median(b - a for a, b in zip(delays[one], delays[later], strict=True))
            for one, later in pairwise(_STEPS)
        },
    }


def _beside_a_reader(engine: Engine, inputs: Arrays, buffer: Buffer) -> SweepStatistics:
    reading = threading.Thread(target=_read_all, args=(engine.program.pack, buffer))
    reading.start()
    statistics = sweep(engine, inputs)
    reading.join()
    return statistics


def _read_all(pack: Pack, buffer: Buffer) -> None:
    """Read the weights once, ``READ_BYTES`` at a time."""
    hasten()
    with closing(open_reader(pack.weights_path)) as reader:
        whole = pack.weights_path.stat().st_size
        for offset in range(0, whole, READ_BYTES):
            length = min(READ_BYTES, whole - offset)
            reader.read_into(offset, memoryview(buffer.bytes.data)[:length])


def main() -> None:
    """Measure each pack and print JSON."""
    claim_process()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packs", nargs="+", type=Path, metavar="PACK")
    parser.add_argument("--weights", type=float, default=2.0, metavar="PERCENT")
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    end([measure(open_pack(path), given.weights, given.rounds) for path in given.packs])


if __name__ == "__main__":
    main()
