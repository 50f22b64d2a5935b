"""Deadlines at three times the capacity: what would be late is refused at once, and FIFO beside it.

``python -m benchmarks.scheduling.deadlines [PACK] [--seconds 8] [--rounds 3] [--timeout 150000]``

One server, one model: a pack, asked with raw tensors, or a small one whose sweeps take most of a request
(16 numbers in and out, as JSON). Capacity: 8 clients that send when they have their answer, before and
after each round. Then requests come at random times (Poisson), in turns with a
timeout in each, which the dispatcher keeps, and without: then they run in the order in which they came,
16 wait at most, and the client counts who came after the deadline. ``in_time``: of the answers.
``goodput``: answers in time a second, as a part of the capacity. Exit 1 where of the accepted fewer than
99 % are in time, refusals take 50 ms or more (p99), or the goodput is below 0.9.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from numpy.typing import NDArray

from benchmarks.load.child import LoadProcess
from benchmarks.load.messages import infer_request, mixed_request
from benchmarks.scheduling.serving import drawn
from benchmarks.servers.served import Served, ours, running
from benchmarks.servers.small_models import heavy
from models.compiler import compile_onnx
from models.packs.pack import Pack, open_pack
from server.codec.datatypes import datatype

_IN_TIME, _REFUSAL_MS, _GOODPUT = 0.99, 50.0, 0.9
_CLIENTS, _CONNECTIONS = 8, 128
#: So many numbers are sent as JSON.
_AS_JSON = 1000
_ADDRESSES = [f"127.0.0.{2 + index}" for index in range(4)]


def main() -> None:
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pack", type=Path, nargs="?", help="a model's folder; none: a small model")
    parser.add_argument("--budget", default="256MiB")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=int, default=150_000, help="microseconds")
    parser.add_argument("--over", type=float, default=3.0, help="times the capacity")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        pack = folder / "repository" / "served"
        if given.pack is None:
            compile_onnx(heavy(folder), pack)
        else:
            shutil.copytree(given.pack, pack)
        asked = [_written(folder, open_pack(pack), timeout) for timeout in (None, given.timeout)]
        with (
            running(ours(pack.parent, given.budget), "--port") as served,
            LoadProcess() as load,
        ):
            rounds = [_round(served, load, asked, given, n) for n in range(given.rounds)]
    ways = {way: _medians([each[way] for each in rounds]) for way in ("deadlines", "fifo")}
    kept = ways["deadlines"]
    holds = kept["in_time"] >= _IN_TIME and kept["goodput_of_capacity"] >= _GOODPUT
    holds = holds and kept["refused_p99_ms"] < _REFUSAL_MS
    model = "small" if given.pack is None else given.pack.name
    print(json.dumps({"model": model, "holds": holds, "median": ways, "rounds": rounds}, indent=2))
    sys.exit(0 if holds else 1)


def _round(
    served: Served, load: LoadProcess, asked: Sequence[Path], given: argparse.Namespace, number: int
) -> dict[str, Any]:
    plain, hurried = asked
    before = _capacity(served, load, plain, given)
    ways = [("deadlines", hurried), ("fifo", plain)]
    runs = {
        way: load.open(
            served.port,
            file,
            rate=given.over * before,
            seconds=given.seconds,
            connections=_CONNECTIONS,
            addresses=_ADDRESSES,
            deadline=given.timeout / 1e6,
            seed=number,
        )
        for way, file in (ways if number % 2 else reversed(ways))
    }
    after = _capacity(served, load, plain, given)
    figures = {way: _figures(run, (before + after) / 2, given.seconds) for way, run in runs.items()}
    return {"capacity": before, "capacity_again": after, **figures}


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


def _written(folder: Path, pack: Pack, timeout: int | None) -> Path:
    """Write a request to ``pack``, with a timeout in microseconds or none."""
    document: dict[str, Any] = {"parameters": {} if timeout is None else {"timeout": timeout}}
    arrays = drawn(pack.manifest)
    is_small = sum(array.size for array in arrays.values()) <= _AS_JSON
    tensors = [_tensor(name, array, is_small) for name, array in arrays.items()]
    document["inputs"] = tensors
    file = folder / f"{'plain' if timeout is None else 'hurried'}.request"
    if is_small:
        file.write_bytes(infer_request("served", document))
    else:
        data = b"".join(array.tobytes() for array in arrays.values())
        file.write_bytes(mixed_request("served", document, data))
    return file


def _tensor(name: str, array: NDArray[Any], as_json: bool) -> dict[str, Any]:
    described = {"name": name, "shape": array.shape, "datatype": datatype(array.dtype.name)}
    if as_json:
        return {**described, "data": array.ravel().tolist()}
    return {**described, "parameters": {"binary_data_size": array.nbytes}}


if __name__ == "__main__":
    main()
