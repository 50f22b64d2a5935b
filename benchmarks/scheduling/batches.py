"""Requests that share sweeps on a slow disk, beside requests that run one by one.

``python -m benchmarks.scheduling.batches PACK [--lanes 8] [--ratio 3] [--rounds 3]``

The disk is paced so that reading the weights takes ``ratio`` times as long as computing one request. As
many clients as lanes ask again as soon as they have their answer. ``of_ideal`` is the throughput beside
reading once and computing for each, one after the other; ``of_overlap`` beside the longer of the two,
which is more than can be. Players take turns. Exit 1 where ``of_ideal`` is below 0.8 or the p99 worse
than that of requests one by one.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.scheduling.serving import (
    ReadsOnly,
    SimulatedMachine,
    asked,
    machine,
    resident,
    streamed,
    sweep_seconds,
)
from benchmarks.turns import end
from loader.readers.disk import Pace
from models.packs.pack import Pack, open_pack
from models.runtime.sessions import claim_process
from pipeline.measuring.sweeps import random_inputs
from server.scheduling.dispatcher import Dispatcher
from server.scheduling.sweeps import Batching

_LEAST = 0.8


def main() -> None:
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pack", type=Path)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--ratio", type=float, default=3.0)
    parser.add_argument("--ring-mib", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    claim_process()
    pack = open_pack(given.pack)
    with machine() as free:
        kernels = sweep_seconds(free.engine(pack, resident(pack)), random_inputs(pack.manifest), 5)
    plan = streamed(pack, given.ring_mib << 20)
    pace = Pace(plan.read_bytes / (given.ratio * kernels))
    with machine(pace) as slow:
        report = _measured(slow, pack, given)
    end(
        {"pack": pack.name, "lanes": given.lanes, **report},
        report["of_ideal"] >= _LEAST and report["p99_ratio"] <= 1.0,
    )


def _measured(slow: SimulatedMachine, pack: Pack, given: argparse.Namespace) -> dict[str, Any]:
    rounds = [_round(slow, pack, given) for _ in range(given.rounds)]
    figures = {key: median(each[key] for each in rounds) for key in rounds[0]}
    return {
        "median": figures,
        "rounds": rounds,
        "of_ideal": round(figures["ideal_seconds"] / figures["shared_seconds"], 3),
        "of_overlap": round(figures["overlap_seconds"] / figures["shared_seconds"], 3),
        "to_one_by_one": round(figures["single_seconds"] / figures["shared_seconds"], 2),
        "p99_ratio": round(figures["shared_p99"] / figures["single_p99"], 3),
    }


def _round(slow: SimulatedMachine, pack: Pack, given: argparse.Namespace) -> dict[str, float]:
    """Return seconds that a set of as many requests as lanes takes, each way, and what its parts take."""
    inputs, lanes, ring = random_inputs(pack.manifest), given.lanes, given.ring_mib << 20
    kernels = sweep_seconds(slow.engine(pack, resident(pack)), inputs, 3)
    reads = sweep_seconds(slow.engine(pack, streamed(pack, ring), ReadsOnly()), inputs, 2)
    single = _served(slow, pack, ring, 1, lanes)
    shared = _served(slow, pack, ring, lanes, lanes)
    return {
        "kernel_seconds": kernels,
        "read_seconds": reads,
        "ideal_seconds": reads + lanes * kernels,
        "overlap_seconds": max(reads, lanes * kernels),
        "single_seconds": single[0],
        "single_p99": single[1],
        "shared_seconds": shared[0],
        "shared_p99": shared[1],
    }


def _served(
    slow: SimulatedMachine, pack: Pack, ring: int, lanes: int, clients: int, sets: int = 4
) -> tuple[float, float]:
    """Return seconds of a set of ``clients`` requests, and the p99 of their delays."""
    return asyncio.run(_serve(slow, pack, ring, lanes, clients, sets))


async def _serve(
    slow: SimulatedMachine, pack: Pack, ring: int, lanes: int, clients: int, sets: int
) -> tuple[float, float]:
    inputs = random_inputs(pack.manifest)
    plan = streamed(pack, ring, lanes)
    worker = slow.worker(pack, plan, Dispatcher(), Batching(lanes))
    try:
        await asked(worker, inputs, clients, clients + 1)
        began = time.perf_counter()
        delays = await asked(worker, inputs, clients, sets * clients)
        return (time.perf_counter() - began) / sets, _p99(delays)
    finally:
        await worker.close()


def _p99(delays: Sequence[float]) -> float:
    return quantiles(delays, n=100, method="inclusive")[98]


if __name__ == "__main__":
    main()
