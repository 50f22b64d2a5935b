"""Partitions: frames pipelined through workers, beside one worker and beside as many threads.

``python -m benchmarks.partitions PACK [--workers 2] [--budget-mib 64] [--frames 16] [--rounds 10]``, on a
machine that nothing else uses. Players take turns, round by round, each round in another order. Prints
medians of the time a frame takes in a stream of them:

- workers: partitions that compute at once, each pinned to a core with one thread;
- one: the whole network pinned to one of these cores, with one thread;
- threads: the whole network with as many threads as there are workers, in a process of its own, since ONNX
  Runtime has one pool a process; pinned to the same cores together.

Without a budget all weights are in memory; with one, each player has all of it. ``gain`` is one / workers,
the median over the rounds, ``to_threads`` threads / workers. Before anything is timed the answers of all
are compared, bit by bit. ``busy_elsewhere``: the cores that others took meanwhile, other virtual machines
too; above a few hundredths the figures say more of them than of this.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.partitions.busy import busy_seconds, seconds_of
from benchmarks.partitions.players import child


def main() -> None:
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("pack", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--budget-mib", type=float)
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    spawning = multiprocessing.get_context("spawn")
    homes: dict[str, Connection] = {}
    facts: dict[str, Any] = {}
    processes = [os.getpid()]
    for names, threads in ((("workers", "one"), 1), (("threads",), given.workers)):
        ours, theirs = spawning.Pipe()
        arguments = (theirs, given.pack, given.workers, given.budget_mib, names, threads)
        process = spawning.Process(target=child, args=arguments, daemon=True)
        process.start()
        processes.append(process.pid or 0)
        facts |= ours.recv()
        homes |= dict.fromkeys(names, ours)
    _check(homes, given.frames)
    began, others = time.perf_counter(), busy_seconds() - seconds_of(processes)
    seconds = _measured(homes, given.frames, given.rounds)
    others = busy_seconds() - seconds_of(processes) - others
    busy = {"busy_elsewhere": others / (time.perf_counter() - began)}
    for home in set(homes.values()):
        home.send(None)
    print(json.dumps(_report(given, seconds) | facts | busy, indent=2))


def _report(given: argparse.Namespace, seconds: dict[str, list[float]]) -> dict[str, Any]:
    def ratios(other: str) -> list[float]:
        return [a / b for a, b in zip(seconds[other], seconds["workers"], strict=True)]

    return {
        "pack": str(given.pack),
        "workers": given.workers,
        "budget_mib": given.budget_mib,
        "frames": given.frames,
        "rounds": given.rounds,
        "frame_ms": {name: 1e3 * statistics.median(each) for name, each in seconds.items()},
        "range_ms": {name: [1e3 * min(each), 1e3 * max(each)] for name, each in seconds.items()},
        "gain": statistics.median(ratios("one")),
        "gain_range": [min(ratios("one")), max(ratios("one"))],
        "to_threads": statistics.median(ratios("threads")),
    }


def _check(homes: dict[str, Connection], frames: int) -> None:
    """Play all once, which verifies the weights, too; exit where answers differ."""
    digests = {name: _play(home, name, frames)[1] for name, home in homes.items()}
    if len(set(digests.values())) > 1:
        raise SystemExit(f"answers have different bits: {digests}")


def _measured(homes: dict[str, Connection], frames: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of a frame of each player by round."""
    seconds: dict[str, list[float]] = {name: [] for name in homes}
    names = list(homes)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            seconds[name].append(_play(homes[name], name, frames)[0] / frames)
    return seconds


def _play(home: Connection, name: str, frames: int) -> tuple[float, str]:
    home.send((name, frames))
    took, digest = home.recv()
    return took, digest


if __name__ == "__main__":
    main()
