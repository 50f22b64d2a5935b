"""Deadlines at three times the capacity: what would be late is refused at once, and FIFO beside it.

``python -m benchmarks.scheduling.deadlines [--seconds 8] [--rounds 3] [--timeout 150000] [--over 3]``

One server, one model whose sweeps take most of a request (16 numbers in and out). Capacity: 8 clients
that send when they have their answer. Then requests come at random times (Poisson), in turns with a
timeout in each, which the dispatcher keeps, and without: then they run in the order in which they came,
16 wait at most, and the client counts who came after the deadline. ``in_time``: of the answers.
``goodput``: answers in time a second, as a part of the capacity. Exit 1 where of the accepted fewer than
99 % are in time, refusals take 50 ms or more (p99), or the goodput is below 0.9.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.load.child import LoadProcess
from benchmarks.load.messages import infer_request
from benchmarks.servers.served import Served, ours, running
from benchmarks.servers.small_models import TINY_SHAPE, heavy
from models.compiler import compile_onnx

_IN_TIME, _REFUSAL_MS, _GOODPUT = 0.99, 50.0, 0.9
_CLIENTS, _CONNECTIONS = 8, 128
_ADDRESSES = [f"127.0.0.{2 + index}" for index in range(4)]


def main() -> None:
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=int, default=150_000, help="microseconds")
    parser.add_argument("--over", type=float, default=3.0, help="times the capacity")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        compile_onnx(heavy(folder), folder / "repository" / "heavy")
        command = ours(folder / "repository", "64MiB")
        with running(command, "--port") as served, LoadProcess() as load:
            rounds = [_round(served, load, folder, given, n) for n in range(given.rounds)]
    ways = {way: _medians([each[way] for each in rounds]) for way in ("deadlines", "fifo")}
    kept = ways["deadlines"]
    holds = kept["in_time"] >= _IN_TIME and kept["goodput_of_capacity"] >= _GOODPUT
    holds = holds and kept["refused_p99_ms"] < _REFUSAL_MS
    print(json.dumps({"holds": holds, "median": ways, "rounds": rounds}, indent=2))
    sys.exit(0 if holds else 1)


def _round(
    served: Served, load: LoadProcess, folder: Path, given: argparse.Namespace, number: int
) -> dict[str, Any]:
    plain, hurried = _written(folder, {}), _written(folder, {"timeout": given.timeout})
    capacity = _capacity(served, load, plain, given)
    ways = [("deadlines", hurried), ("fifo", plain)]
    found: dict[str, Any] = {"capacity": capacity}
    for way, file in ways if number % 2 else reversed(ways):
        run = load.open(
            served.port,
            file,
            rate=given.over * capacity,
            seconds=given.seconds,
            connections=_CONNECTIONS,
            addresses=_ADDRESSES,
            deadline=given.timeout / 1e6,
            seed=number,
        )
        found[way] = _figures(run, capacity, given.seconds)
    found["capacity_again"] = _capacity(served, load, plain, given)
    return found


def _capacity(served: Served, load: LoadProcess, file: Path, given: argparse.Namespace) -> float:
    found = load.closed(served.port, file, _CLIENTS, max(given.seconds / 3, 2.0))
    return float(found["per_second"])


def _figures(run: dict[str, Any], capacity: float, seconds: float) -> dict[str, Any]:
    """Return what came of a load; accepted are those that were not refused at once."""
    answered = run["accepted"]["count"]
    late = run["accepted_after_deadline"]["count"]
    # 504: accepted, and given up at the deadline.
    accepted = answered + run["statuses"].get("504", 0) + run["statuses"].get("none", 0)
    return {
        "arrived": run["arrived"],
        "unsent": run["unsent"],
        "statuses": run["statuses"],
        "in_time": round((answered - late) / max(accepted, 1), 4),
        "goodput_of_capacity": round((answered - late) / seconds / capacity, 3),
        "refused_p99_ms": run["refused"].get("p99_ms", 0.0),
        "delay_p50_ms": run["accepted"].get("p50_ms", 0.0),
        "delay_p99_ms": run["accepted"].get("p99_ms", 0.0),
    }


def _medians(runs: list[dict[str, Any]]) -> dict[str, float]:
    keys = [key for key, value in runs[0].items() if isinstance(value, float)]
    return {key: median(run[key] for run in runs) for key in keys}


def _written(folder: Path, parameters: dict[str, Any]) -> Path:
    values = np.random.default_rng(0).standard_normal(TINY_SHAPE).astype(np.float32)
    data = {"name": "x", "shape": TINY_SHAPE, "datatype": "FP32", "data": values.ravel().tolist()}
    file = folder / f"{'-'.join(parameters) or 'plain'}.request"
    file.write_bytes(infer_request("heavy", {"inputs": [data], "parameters": parameters}))
    return file


if __name__ == "__main__":
    main()
