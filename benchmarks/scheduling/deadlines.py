"""Deadlines at three times the capacity: what would be late is refused at once; a plain server beside it.

``python -m benchmarks.scheduling.deadlines [tiny | heavy | PACK...] [--seconds 8] [--rounds 3]
[--timeout 150000] [--connections 256] [--budget 256MiB]``

A model: ``tiny``, whose answer the event loop computes; ``heavy``, whose sweep takes most of a request; or
packs, asked in a mixture with raw tensors. The first two have a plain server beside them (FastAPI, uvicorn
and ONNX Runtime), which refuses nothing. In turns each server gets: 8 clients that send when they have
their answer (its capacity, before and after); requests at random times (Poisson) at 3 x that, with a
timeout in each, over at most so many connections; and, where the model is tiny, 120 connections kept busy
with a timeout of 5 ms.

The client sees of the servers only what they send. ``late``: of the accepted (all but 503), the part that
the client had read after the timeout; ``late_if_read_at_once``: that had come to its machine after it.
``client_late_p99_ms``: how late the client itself sent, ``unread_p99_ms``: how long answers waited for it.
``goodput``: answers in time a second, as a part of the capacity. Exit 1 where ours are late in over 1 %,
refusals take 50 ms or more (p99), or the goodput is below 0.9.
"""

import argparse
import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from numpy.typing import NDArray

from benchmarks.load.child import LoadProcess
from benchmarks.load.messages import infer_request, mixed_request
from benchmarks.load.percentiles import ratio
from benchmarks.servers.served import Served, ours, peer, running
from benchmarks.servers.small_models import heavy, tiny
from benchmarks.turns import end
from models.compiler import compile_onnx
from models.packs.pack import Pack, open_pack
from pipeline.measuring.sweeps import random_inputs
from server.codec.datatypes import datatype

_LATE, _REFUSAL_MS, _GOODPUT = 0.01, 50.0, 0.9
_CLIENTS = 8
#: Connections that are kept busy, and the timeout of their requests in microseconds.
_KEPT, _SHORT = 120, 5_000
#: So many numbers are sent as JSON.
_AS_JSON = 1000
_ADDRESSES = [f"127.0.0.{2 + index}" for index in range(4)]
_BUILT = {"tiny": tiny, "heavy": heavy}


def main() -> None:
    """Measure and print one JSON document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", help="tiny, heavy or models' folders")
    parser.add_argument("--budget", default="256MiB")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=int, default=150_000, help="microseconds")
    parser.add_argument("--over", type=float, default=3.0, help="times the capacity")
    parser.add_argument("--connections", type=int, default=256, help="at most")
    given = parser.parse_args()
    given.models = given.models or ["heavy"]
    with tempfile.TemporaryDirectory(dir=".") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        repository = folder / "repository"
        servers = dict(_servers(folder, repository, given, stack))
        packs = {pack.name: open_pack(pack) for pack in sorted(repository.iterdir())}
        bench = _Bench(folder, packs, given, stack.enter_context(LoadProcess()))
        rounds = [
            {
                name: bench.round(servers[name], number)
                for name in sorted(servers, reverse=number % 2 == 1)
            }
            for number in range(given.rounds)
        ]
    medians = {name: _medians([each[name] for each in rounds]) for name in servers}
    faults = [
        f"{way}: {fault}" for way, run in medians["ours"].items() for fault in _faults(way, run)
    ]
    document = {"models": given.models, "faults": faults, "median": medians, "rounds": rounds}
    end(document, not faults)


def _servers(
    folder: Path, repository: Path, given: argparse.Namespace, stack: contextlib.ExitStack
) -> Iterator[tuple[str, Served]]:
    """Start ours and, where the model is built here, a plain one; yield them by name."""
    build = _BUILT.get(given.models[0])
    if build is None:
        for model in map(Path, given.models):
            shutil.copytree(model, repository / model.name)
    else:
        source = build(folder)
        compile_onnx(source, repository / "served")
        yield "plain", stack.enter_context(running(peer(source)))
    yield "ours", stack.enter_context(running(ours(repository, given.budget), "--port"))


class _Bench:
    """The loads, made by ``load``."""

    def __init__(
        self, folder: Path, packs: dict[str, Pack], given: argparse.Namespace, load: LoadProcess
    ) -> None:
        self._given, self._load = given, load
        timeouts = (None, given.timeout, _SHORT)
        self._asked = {
            timeout: [_written(folder, name, pack, timeout) for name, pack in packs.items()]
            for timeout in timeouts
        }

    def round(self, served: Served, number: int) -> dict[str, Any]:
        """Return what came of each load of ``served``."""
        given = self._given
        before = self._capacity(served)
        run = self._load.open(
            served.port,
            self._asked[given.timeout],
            rate=given.over * before,
            seconds=given.seconds,
            connections=given.connections,
            addresses=_ADDRESSES,
            deadline=given.timeout / 1e6,
            seed=number,
        )
        runs = {"open": run}
        if given.models == ["tiny"]:
            runs["kept"] = self._load.closed(
                served.port, self._asked[_SHORT], _KEPT, given.seconds, _SHORT / 1e6
            )
        after = self._capacity(served)
        capacity = (before + after) / 2
        return {
            "capacity": {"before": before, "after": after},
            **{way: _figures(each, capacity, given.seconds) for way, each in runs.items()},
        }

    def _capacity(self, served: Served) -> float:
        seconds = max(self._given.seconds / 3, 2.0)
        found = self._load.closed(served.port, self._asked[None], _CLIENTS, seconds)
        return float(found["per_second"])


def _figures(run: dict[str, Any], capacity: float, seconds: float) -> dict[str, Any]:
    """Return what came of a load; accepted are those that were not refused at once."""
    answered, late = run["accepted"]["count"], run["late"]["count"]
    # 504: accepted, and given up at the deadline.
    given_up = run["statuses"].get("504", 0) + run["statuses"].get("none", 0)
    accepted = max(answered + given_up, 1)
    return {
        "statuses": run["statuses"],
        "unsent": run.get("unsent", 0),
        "late": round((late + given_up) / accepted, 4),
        "late_if_read_at_once": round((run["late_if_read_at_once"] + given_up) / accepted, 4),
        "goodput_of_capacity": ratio((answered - late) / seconds, capacity) or 0.0,
        "refused_p99_ms": run["refused"].get("p99_ms", 0.0),
        "delay_p50_ms": run["accepted"].get("p50_ms", 0.0),
        "delay_p99_ms": run["accepted"].get("p99_ms", 0.0),
        "client_late_p99_ms": run.get("client_late", {}).get("p99_ms", 0.0),
        "unread_p99_ms": run["unread"].get("p99_ms", 0.0),
    }


def _faults(way: str, run: dict[str, float]) -> Iterator[str]:
    """Yield in words what is not within the bounds; connections kept busy may cost goodput."""
    if way == "capacity":
        return
    if run["late"] > _LATE:
        yield f"{run['late']} of the accepted late, bound {_LATE}"
    if run["refused_p99_ms"] >= _REFUSAL_MS:
        yield f"refusals take {run['refused_p99_ms']} ms (p99), bound {_REFUSAL_MS}"
    if way == "open" and run["goodput_of_capacity"] < _GOODPUT:
        yield f"goodput {run['goodput_of_capacity']} of the capacity, bound {_GOODPUT}"


def _medians(rounds: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    return {
        way: {
            key: median(each[way][key] for each in rounds)
            for key, value in figures.items()
            if isinstance(value, float)
        }
        for way, figures in rounds[0].items()
    }


def _written(folder: Path, name: str, pack: Pack, timeout: int | None) -> Path:
    """Write a request to the model ``name``, a ``pack``, with a timeout in microseconds or none."""
    document: dict[str, Any] = {} if timeout is None else {"parameters": {"timeout": timeout}}
    arrays = random_inputs(pack.manifest)
    is_small = sum(array.size for array in arrays.values()) <= _AS_JSON
    document["inputs"] = [_tensor(port, array, is_small) for port, array in arrays.items()]
    file = folder / f"{name}-{'plain' if timeout is None else timeout}.request"
    if is_small:
        file.write_bytes(infer_request(name, document))
    else:
        data = b"".join(array.tobytes() for array in arrays.values())
        file.write_bytes(mixed_request(name, document, data))
    return file


def _tensor(name: str, array: NDArray[Any], as_json: bool) -> dict[str, Any]:
    described = {"name": name, "shape": array.shape, "datatype": datatype(array.dtype.name)}
    if as_json:
        return {**described, "data": array.ravel().tolist()}
    return {**described, "parameters": {"binary_data_size": array.nbytes}}


if __name__ == "__main__":
    main()
