"""One plan on disks of several speeds, which read without a core, beside the real disk, taking turns.

What the real disk takes longer than one of its speed is what this machine's way of reading costs. ``reach``
is the larger of the kernels of ``pre`` and of what is not in memory at the disk's speed; ``least`` what no
plan of as much memory can beat, by the order of kernels and weights. Medians of the rounds in which other
machines took least of the processors (``stolen``).

Run as ``python -m benchmarks.planning.disks PACK [--profile FILE] [--weights 10] [--speeds 2.5,3.5,7]
[--rounds 24]``; prints JSON.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.engines import Engines, sweep
from benchmarks.turns import end, rotated
from loader.readers.disk import REAL_DISK, Disk, paced_disk
from models.packs.pack import open_pack
from models.records import read_json
from models.runtime.sessions import claim_process
from pipeline.benchmark.configuration import BenchConfiguration, plan_configuration
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.statistics import SweepStatistics
from pipeline.fitting.predicting import Predictions
from pipeline.measuring.sweeps import random_inputs
from pipeline.planning.plan import Plan
from pipeline.planning.streaming import streamed_units
from pipeline.profiles.profile import Profile
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES

_WARM_UP = 3
# Of the rounds, the quietest.
_KEPT = 0.5
_STAT = Path("/proc/stat")


def least_seconds(
    kernels: Sequence[float], weights: Sequence[int], memory_bytes: int, bytes_per_second: float
) -> float:
    """Return seconds that a sweep takes at least, however its ring and residents share ``memory_bytes``.

    ``kernels[i]`` seconds of kernel i, which needs ``weights[i]`` bytes. All memory may be full when the
    sweep begins. Where kernels q to p need more than fits, the rest is read while they run, and what
    follows p comes after it: docs/research/profile.md, "What memory is worth".
    """
    least = total = sum(kernels)
    before = 0.0  # of the kernels in front of q
    for q, seconds in enumerate(kernels):
        unread, after = -memory_bytes, total - before
        for kernel, n_bytes in zip(kernels[q:], weights[q:], strict=True):
            unread, after = unread + n_bytes, after - kernel
            least = max(least, before + unread / bytes_per_second + after)
        before += seconds
    return least


def stolen() -> tuple[int, int]:
    """Return the ticks that other machines took from this machine's processors, and all ticks."""
    ticks = [int(part) for part in _STAT.read_text().split(maxsplit=9)[1:9]]
    return ticks[7], sum(ticks)


def rounds(players: dict[str, Callable[[], SweepStatistics]], count: int) -> list[dict[str, float]]:
    """Let all run once a round, in rotating order; return seconds by name, and ``stolen``."""
    found = []
    for turn in range(-_WARM_UP, count):
        before = stolen()
        row = {name: players[name]().delay_seconds for name in rotated(list(players), turn)}
        taken, passed = (now - then for now, then in zip(stolen(), before, strict=True))
        if turn >= 0:
            found.append({**row, "stolen": taken / max(passed, 1)})
    return found


def in_order(program: Program, plan: Plan, profile: Profile) -> tuple[list[float], list[int]]:
    """Return seconds and bytes of weights of each kernel of ``plan``, in their order."""
    kernels = list(Predictions.of(program, profile).estimates.kernels(plan))
    weights = [0] * len(kernels)
    for unit in streamed_units(program, plan.steps, ()):
        weights[unit.steps.start] += unit.length
    return kernels, weights


def measure(path: Path, profile: Profile, part: float, speeds: list[float], count: int) -> Any:
    """Return the figures of one pack with ``part`` of its weights in memory."""
    device = CpuDevice()
    program = prepare(open_pack(path), device)
    limit = int(part * program.weight_bytes)
    auto = BenchConfiguration("auto", ARCHITECTURES["auto"], limit)
    plans = [plan_configuration(program, auto, None, profile)]
    plans.append(plan_configuration(program, BenchConfiguration("pre", ARCHITECTURES["pre"])))
    inputs = random_inputs(program)
    disks: dict[str, tuple[int, Disk]] = {"pre": (1, REAL_DISK), "real": (0, REAL_DISK)}
    disks |= {f"{speed:g}": (0, paced_disk(speed * 1e9)) for speed in speeds}
    with Engines(device) as opened:
        players: dict[str, Callable[[], SweepStatistics]] = {}
        for name, (number, disk) in disks.items():
            reader = disk.open(program.pack.weights_path)
            engine = opened.open(program, plans[number].plan, reader)
            players[name] = partial(sweep, engine, inputs)
        quiet_rounds = rounds(players, count)
    quiet_rounds = sorted(quiet_rounds, key=lambda row: row["stolen"])[: max(int(_KEPT * count), 1)]
    took = {name: 1e3 * median(row[name] for row in quiet_rounds) for name in disks}
    streamed, pre = (configured.plan for configured in plans)
    unread = program.weight_bytes - streamed.weight_bytes
    reach = {f"{speed:g}": max(took["pre"], unread / speed / 1e6) for speed in speeds}
    kernels, weights = in_order(program, pre, profile)
    share = took["pre"] / sum(kernels)
    kernels = [seconds * share for seconds in kernels]
    weight_bytes = streamed.weight_bytes
    least = {
        f"{speed:g}": least_seconds(kernels, weights, weight_bytes, speed * 1e6) for speed in speeds
    }
    return {
        "model": program.name,
        "weight_bytes": weight_bytes,
        "unread_bytes": unread,
        "rounds": len(quiet_rounds),
        "stolen": median(row["stolen"] for row in quiet_rounds),
        "ms": took,
        "reach_ms": reach,
        "least_ms": least,
        "beside_reach": {name: took[name] / reach[name] for name in reach},
        "beside_least": {name: took[name] / least[name] for name in least},
    }


def main() -> None:
    """Measure a pack and print JSON."""
    claim_process()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--profile", type=Path, help="file that is planned on; default: the pack's")
    parser.add_argument("--weights", type=float, default=10.0, help="percent in memory")
    parser.add_argument("--speeds", default="2.5,3.5,7", help="GB/s, comma-separated")
    parser.add_argument("--rounds", type=int, default=24)
    given = parser.parse_args()
    file = given.profile or open_pack(given.pack).folder / "profile.json"
    profile = read_json(Profile, file.read_bytes())
    speeds = [float(speed) for speed in given.speeds.split(",")]
    end(measure(given.pack, profile, given.weights / 100, speeds, given.rounds))


if __name__ == "__main__":
    main()
