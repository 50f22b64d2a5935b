"""Lanes: N requests in one sweep, beside reading the weights once and computing N times without reading.

``python -m benchmarks.lanes PACK [--lanes 8] [--ring-mib 4] [--rounds 10]``, on a machine that nothing else
uses. Players take turns, round by round, so that what changes there changes for all. Prints medians:

- lanes: one sweep that carries N requests, weights through a small ring;
- sweeps: N sweeps of one request each, the same ring;
- kernels: one sweep of N requests, all weights in memory: kernels and nothing else;
- read: the weights once, and nothing else.

``ratio`` is (read + kernels) / lanes: the throughput of lanes as a part of what reading once and computing
N times one after the other would give. Above 1 reads hide behind kernels.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.buffers import Buffer
from loader.pool.pool import ReadPool
from loader.readers.files import open_reader
from models.packs.manifest import Manifest
from models.packs.pack import Pack, open_pack
from models.runtime.sessions import claim_process
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.engine import Engine
from pipeline.execution.lanes import Lane
from pipeline.execution.opened import opened
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.schedule.architectures import ARCHITECTURES

_BLOCK_BYTES = 4 << 20


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
        players, plans = _players(stack, pack, given.lanes, given.ring_mib << 20)
        seconds = _measured(players, given.rounds)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    document = {
        "pack": str(given.pack),
        "lanes": given.lanes,
        "rounds": given.rounds,
        "median_ms": {name: 1e3 * each for name, each in medians.items()},
        "spread_ms": {name: 1e3 * (max(each) - min(each)) for name, each in seconds.items()},
        "ratio": (medians["read"] + medians["kernels"]) / medians["lanes"],
        "memory": {name: plan.memory for name, plan in plans.items()},
    }
    print(json.dumps(document, indent=2))


def _players(
    stack: ExitStack, pack: Pack, lanes: int, ring_bytes: int
) -> tuple[dict[str, Callable[[], None]], dict[str, Plan]]:
    device, pool = CpuDevice(), ReadPool()
    stack.callback(pool.close)
    ring = Choice(ring_bytes, ahead="never")
    choices = {
        "lanes": ("2s", replace(ring, lanes=lanes)),
        "sweeps": ("2s", ring),
        "kernels": ("pre", Choice(lanes=lanes)),
    }
    plans, engines = {}, {}
    for name, (architecture, choice) in choices.items():
        plan = make_plan(pack.manifest, ARCHITECTURES[architecture], choice=choice)
        plans[name] = plan
        engines[name] = stack.enter_context(opened(pack, plan, device, pool))
    requests = [Lane(_inputs(pack.manifest, seed)) for seed in range(lanes)]
    reader = stack.enter_context(closing(open_reader(pack.weights_path)))
    buffer = stack.enter_context(closing(Buffer(_BLOCK_BYTES)))

    def sweeps() -> None:
        for request in requests:
            engines["sweeps"].run(request.inputs)

    def read() -> None:
        spans = [pack.manifest.spans[span] for span in plans["lanes"].streamed]
        for offset in range(spans[0].offset, spans[-1].offset, _BLOCK_BYTES):
            length = min(_BLOCK_BYTES, spans[-1].offset + spans[-1].length - offset)
            reader.read_into(offset, buffer.bytes[:length].data)

    players = {
        "lanes": lambda: _all(engines["lanes"], requests),
        "sweeps": sweeps,
        "kernels": lambda: _all(engines["kernels"], requests),
        "read": read,
    }
    return players, plans


def _all(engine: Engine, requests: Sequence[Lane]) -> None:
    for answer in engine.run_lanes(requests):
        if isinstance(answer, Exception):
            raise answer


def _inputs(manifest: Manifest, seed: int) -> dict[str, NDArray[Any]]:
    generator = np.random.default_rng(seed)
    return {
        port.name: generator.standard_normal(port.shape).astype(port.dtype)
        for port in manifest.inputs
    }


def _measured(players: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Return seconds of each player by round, without the first one, which verifies checksums."""
    seconds: dict[str, list[float]] = {name: [] for name in players}
    for number in range(rounds + 1):
        for name, play in players.items():
            began = time.perf_counter()
            play()
            if number:
                seconds[name].append(time.perf_counter() - began)
    return seconds


if __name__ == "__main__":
    main()
