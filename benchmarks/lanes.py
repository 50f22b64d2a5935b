"""Lanes: N requests in one sweep, beside reading the weights once and computing N times without reading.

``python -m benchmarks.lanes PACK [--lanes 8] [--ring-mib 4] [--rounds 10]``, on a machine that nothing else
uses. Players take turns, round by round, each round in another order, so that what changes on the machine
changes for all. Prints medians:

- lanes: one sweep that carries N requests, weights through a small ring;
- sweeps: N sweeps of one request each, the same ring;
- kernels: N sweeps of one request each, all weights in memory: kernels and nothing else;
- read: the reads of one sweep through the same ring, as the engine makes them, and no kernels.

``ratio`` is (read + kernels) / lanes, the median over the rounds: the throughput of lanes as a part of what
reading once and then computing N times would give. Above 1 reads hide behind kernels. ``to_sweeps`` is
sweeps / lanes, what one gains. Before anything is timed the answers of all are compared, bit by bit.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.pool.pool import ReadPool
from models.packs.manifest import Manifest
from models.packs.pack import Pack, open_pack
from models.runtime.sessions import claim_process
from pipeline.devices.base import Kernel, Launch
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.device_memory import Memory
from pipeline.execution.engine import Engine
from pipeline.execution.lane import Lane
from pipeline.execution.opened import opened
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES

Outputs = dict[str, NDArray[Any]]
Player = Callable[[], list[Outputs]]


def main() -> None:
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("pack", type=Path)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--ring-mib", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    claim_process()
    pack = open_pack(given.pack)
    with ExitStack() as stack:
        players, memory = _players(stack, pack, given.lanes, given.ring_mib << 20)
        _check(players)
        seconds = _measured(players, given.rounds)
    print(json.dumps(_report(given, seconds) | {"memory": memory}, indent=2))


def _report(given: argparse.Namespace, seconds: dict[str, list[float]]) -> dict[str, Any]:
    rounds = [dict(zip(seconds, each, strict=True)) for each in zip(*seconds.values(), strict=True)]
    ratios = [(each["read"] + each["kernels"]) / each["lanes"] for each in rounds]
    return {
        "pack": str(given.pack),
        "lanes": given.lanes,
        "rounds": given.rounds,
        "median_ms": {name: 1e3 * statistics.median(each) for name, each in seconds.items()},
        "spread_ms": {name: 1e3 * (max(each) - min(each)) for name, each in seconds.items()},
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "to_sweeps": statistics.median(each["sweeps"] / each["lanes"] for each in rounds),
    }


class _Nothing(Kernel):
    def bind(
        self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Memory | None = None
    ) -> Launch:
        return lambda: None


class _ReadsOnly(CpuDevice):
    """Computes nothing, so that a sweep takes what its reads take."""

    def load(self, graph: bytes) -> Kernel:
        return _Nothing()


def _players(
    stack: ExitStack, pack: Pack, lanes: int, ring_bytes: int
) -> tuple[dict[str, Player], dict[str, dict[str, int]]]:
    """Return the players, each of which returns its answers, and the planned memory of each."""
    program = Program.as_compiled(pack)
    device, pool = CpuDevice(), ReadPool()
    stack.callback(pool.close)
    ring = Choice(ring_bytes, ahead="never")
    plans = {
        name: make_plan(program, ARCHITECTURES[architecture], choice=choice)
        for name, (architecture, choice) in {
            "lanes": ("2s", replace(ring, lanes=lanes)),
            "sweeps": ("2s", ring),
            "kernels": ("pre", Choice()),
            "read": ("2s", ring),
        }.items()
    }
    engines = {
        name: stack.enter_context(
            opened(program, plan, _ReadsOnly() if name == "read" else device, pool)
        )
        for name, plan in plans.items()
    }
    requests = [Lane(_inputs(pack.manifest, seed)) for seed in range(lanes)]
    players: dict[str, Player] = {
        "lanes": lambda: _at_once(engines["lanes"], requests),
        "sweeps": lambda: _one_by_one(engines["sweeps"], requests),
        "kernels": lambda: _one_by_one(engines["kernels"], requests),
        "read": lambda: _one_by_one(engines["read"], requests[:1]),
    }
    return players, {name: plan.memory for name, plan in plans.items()}


def _at_once(engine: Engine, requests: Sequence[Lane]) -> list[Outputs]:
    answers = []
    for answer in engine.run_lanes(requests):
        if isinstance(answer, Exception):
            raise answer
        answers.append(answer[0])
    return answers


def _one_by_one(engine: Engine, requests: Sequence[Lane]) -> list[Outputs]:
    return [engine.run(request.inputs)[0] for request in requests]


def _inputs(manifest: Manifest, seed: int) -> dict[str, NDArray[Any]]:
    generator = np.random.default_rng(seed)
    return {
        port.name: generator.standard_normal(port.shape).astype(port.dtype)
        for port in manifest.inputs
    }


def _check(players: dict[str, Player]) -> None:
    """Run all once, which verifies the weights, too; exit where answers differ."""
    answers = {name: play() for name, play in players.items()}
    for name in ("lanes", "sweeps"):
        for one, other in zip(answers[name], answers["kernels"], strict=True):
            if any(one[port].tobytes() != other[port].tobytes() for port in other):
                raise SystemExit(f"{name}: an answer has other bits than that of resident weights")


def _measured(players: dict[str, Player], rounds: int) -> dict[str, list[float]]:
    """Return seconds of each player by round."""
    seconds: dict[str, list[float]] = {name: [] for name in players}
    names = list(players)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            began = time.perf_counter()
            players[name]()
            seconds[name].append(time.perf_counter() - began)
    return seconds


if __name__ == "__main__":
    main()
