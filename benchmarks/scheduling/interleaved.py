"""Two models that stream from one slow disk: interleaved by the dispatcher, and beside it at once.

``python -m benchmarks.scheduling.interleaved PACK PACK [--sweeps 6] [--rounds 3] [--sleep-ms 10]``

One should read much for what it computes (ResNet-152), the other little (DenseNet-121). The disk is paced
so that reads of both together take ``--share`` of what their kernels take. Each model has two clients,
and what is timed are ``sweeps`` requests to each. ``ratio`` is that over the longer of all kernels and
all reads, which is less than can be: 1.10 is asked for. ``at_once``: each model has a dispatcher of its
own, so that both compute whenever they can, as before there was one. ``alone``: one after the other.
Players take turns.

Reads of a virtual disk take cores that kernels need. ``--threads 1`` leaves one to them: kernels, and what
they are compared with, have one thread. ``--free-reads``: a read takes its time and no core.

On a machine that others use, ``at_once`` gets more of it, since it has more threads. With ``--sleep-ms``
kernels sleep instead of computing, and only waiting is measured (``at_once`` means nothing then).
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.scheduling.serving import (
    ReadsOnly,
    SimulatedMachine,
    Sleeping,
    asked,
    machine,
    resident,
    streamed,
    sweep_seconds,
)
from benchmarks.turns import end
from loader.readers.disk import Pace
from models.packs.pack import Pack, open_pack
from models.runtime.sessions import claim_process, use_threads
from pipeline.measuring.sweeps import random_inputs
from server.scheduling.dispatcher import Dispatcher

_MOST = 1.10
_CLIENTS = 2


def main() -> None:
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("packs", type=Path, nargs=2)
    parser.add_argument("--ring-mib", type=int, default=8)
    parser.add_argument("--share", type=float, default=0.8)
    parser.add_argument("--sweeps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sleep-ms", type=float, help="kernels that sleep, not compute")
    parser.add_argument("--threads", type=int, help="that compute; default: one a core")
    parser.add_argument("--free-reads", action="store_true", help="reads that take no core")
    given = parser.parse_args()
    claim_process()
    use_threads(given.threads)
    packs = [open_pack(path) for path in given.packs]
    ring = given.ring_mib << 20
    device = None if given.sleep_ms is None else Sleeping(given.sleep_ms / 1e3)
    with machine(device=device) as free:
        kernels = sum(_kernels(free, pack) for pack in packs)
    read_bytes = sum(streamed(pack, ring).read_bytes for pack in packs)
    pace = Pace(read_bytes / (given.share * kernels))
    with machine(pace, device, given.free_reads) as slow:
        rounds = [_round(slow, packs, ring, given.sweeps) for _ in range(given.rounds)]
    figures = {key: median(each[key] for each in rounds) for key in rounds[0]}
    names = [pack.name for pack in packs]
    ratios = {
        way: round(median(each[way] / each["ideal"] for each in rounds), 3)
        for way in ("interleaved", "at_once", "alone")
    }
    end(
        {"packs": names, "ratio": ratios, "median": figures, "rounds": rounds},
        ratios["interleaved"] <= _MOST,
    )


def _kernels(where: SimulatedMachine, pack: Pack) -> float:
    return sweep_seconds(where.engine(pack, resident(pack)), random_inputs(pack.manifest), 3)


def _round(slow: SimulatedMachine, packs: Sequence[Pack], ring: int, sweeps: int) -> dict[str, Any]:
    kernels = [sweeps * _kernels(slow, pack) for pack in packs]
    reads = [
        sweeps
        * sweep_seconds(
            slow.engine(pack, streamed(pack, ring), ReadsOnly()), random_inputs(pack.manifest), 2
        )
        for pack in packs
    ]
    one, two = Dispatcher(), Dispatcher()
    return {
        "kernels": sum(kernels),
        "reads": sum(reads),
        "ideal": max(sum(kernels), sum(reads)),
        "interleaved": asyncio.run(_total(slow, packs, ring, [one, one], sweeps)),
        "at_once": asyncio.run(_total(slow, packs, ring, [Dispatcher(), two], sweeps)),
        "alone": sum(
            asyncio.run(_total(slow, [pack], ring, [Dispatcher()], sweeps)) for pack in packs
        ),
    }


async def _total(
    slow: SimulatedMachine,
    packs: Sequence[Pack],
    ring: int,
    dispatchers: Sequence[Dispatcher],
    sweeps: int,
) -> float:
    """Return the seconds of ``sweeps`` requests to each of ``packs``, all asked at once."""
    workers = [
        slow.worker(pack, streamed(pack, ring), dispatcher)
        for pack, dispatcher in zip(packs, dispatchers, strict=True)
    ]
    try:
        for pack, worker in zip(packs, workers, strict=True):
            await asked(worker, random_inputs(pack.manifest), 1, 2)
        began = time.perf_counter()
        await asyncio.gather(
            *(
                asked(worker, random_inputs(pack.manifest), _CLIENTS, sweeps)
                for pack, worker in zip(packs, workers, strict=True)
            )
        )
        return time.perf_counter() - began
    finally:
        for worker in workers:
            await worker.close()


if __name__ == "__main__":
    main()
