"""What HTTP costs on a kept connection: 1x16 numbers to a tiny model, ours beside a plain server; tensors.

The peers are FastAPI, uvicorn and ONNX Runtime as one would write them, plain and with what a service
needs: validation, a thread that computes, metrics (``benchmarks/children/peer_server.py``).
Delays: one kept connection each, request by request in turns. Requests a second, and CPU time of the server
a request: 8 clients that send when they have their answer, from a process of their own (wrk where it is
installed, else ours), in rounds that take turns. Tensors of
600 KB, raw and as JSON: what of the delay is not the engine's.

Run as ``python -m benchmarks.http_overhead [--runs 2000] [--rounds 5] [--seconds 3]
[--tensor-runs 200]``.
"""

import argparse
import contextlib
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks.load.child import LoadProcess
from benchmarks.load.messages import Response, ResponseReader, infer_request, tensors_document
from benchmarks.load.percentiles import ratio, summary_ms
from benchmarks.load.tensors import overheads
from benchmarks.load.wrk import has_wrk, post_script, wrk_loop
from benchmarks.machine.processes import cpu_seconds, event_loop
from benchmarks.servers.served import Served, ours, peer, running
from benchmarks.servers.small_models import TINY_SHAPE, pooled, tiny, wide
from benchmarks.turns import end, in_turns
from models.compiler import compile_onnx

_LAYERSTREAM, _PLAIN, _SERVICE = "layerstream", "fastapi_onnxruntime", "fastapi_onnxruntime_service"
_CLIENTS = 8
#: Of a peer: our delay at most, and our rate at least.
_BOUNDS = {_PLAIN: (1.3, 0.8), _SERVICE: (0.66, 1.9)}
# Of a tensor of 600 KB that comes as raw bytes.
_MOST_OVERHEAD_MS = 3.0


class _Client:
    """A kept connection that waits for its answers."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = ResponseReader()

    def ask(self, request: bytes) -> Response:
        self._socket.sendall(request)
        while (response := self._reader.feed(self._received())) is None:
            pass
        return response

    def _received(self) -> bytes:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the server closed a kept connection")
        return data

    def close(self) -> None:
        self._socket.close()


def _check(served: Served, request: bytes, expected: np.ndarray[Any, Any]) -> None:
    client = _Client(served.port)
    response = client.ask(request)
    client.close()
    answer = np.asarray(response.json()["outputs"][0]["data"], np.float32)
    np.testing.assert_allclose(answer, expected.ravel(), rtol=1e-5, atol=1e-6)


def delays(servers: dict[str, Served], request: bytes, runs: int) -> dict[str, Any]:
    """Return the delays of ``runs`` requests to each server, in turns after a tenth to get warm."""
    clients = {name: _Client(served.port) for name, served in servers.items()}
    players = {name: partial(_timed, client, request) for name, client in clients.items()}
    found = in_turns(players, runs, runs // 10)
    for client in clients.values():
        client.close()
    return {name: summary_ms(values) for name, values in found.items()}


def _timed(client: _Client, request: bytes) -> float:
    started = time.perf_counter()
    client.ask(request)
    return time.perf_counter() - started


def rates(
    servers: dict[str, Served], request: Path, rounds: int, seconds: float
) -> dict[str, dict[str, Any]]:
    """Return requests a second (median of the rounds) and CPU seconds a request of each server."""
    with _load(request) as load:
        players = {
            name: partial(_loaded, served, load, seconds) for name, served in servers.items()
        }
        found = in_turns(players, rounds)
    return {
        name: {
            "per_second": statistics.median(each["per_second"] for each in done),
            "rounds": [each["per_second"] for each in done],
            "cpu_ms_per_request": round(statistics.median(each["cpu"] for each in done) * 1e3, 3),
            "statuses": done[-1]["statuses"],
        }
        for name, done in found.items()
    }


def _loaded(
    served: Served, load: Callable[[int, float], dict[str, Any]], seconds: float
) -> dict[str, Any]:
    """Return what came of the load, and the CPU seconds of an answer."""
    before = cpu_seconds(served.pid)
    done = load(served.port, seconds)
    return {**done, "cpu": (cpu_seconds(served.pid) - before) / max(1, done["answers"])}


@contextlib.contextmanager
def _load(request: Path) -> Iterator[Callable[[int, float], dict[str, Any]]]:
    """Yield what sends the request in a file to a port for so many seconds: wrk, or clients of our own."""
    if has_wrk():
        head, _, body = request.read_bytes().partition(b"\r\n\r\n")
        script = request.with_suffix(".lua")
        script.write_text(post_script(body))
        path = head.split()[1].decode()
        yield lambda port, seconds: wrk_loop(port, script, path, _CLIENTS, seconds)
        return
    with LoadProcess() as process:
        yield lambda port, seconds: process.closed(port, request, _CLIENTS, seconds)


def tensors(folder: Path, runs: int) -> dict[str, Any]:
    """Return what tensors of 600 KB cost, raw and as JSON."""
    for model in (pooled(folder), wide(folder)):
        compile_onnx(model, folder / "wide" / model.stem)
    with running(ours(folder / "wide", "96MiB"), "--port") as served:
        client = _Client(served.port)
        try:
            return overheads(client.ask, runs)
        finally:
            client.close()


def _measure(folder: Path, runs: int, rounds: int, seconds: float) -> dict[str, Any]:
    source = tiny(folder)
    compile_onnx(source, folder / "repository" / "tiny")
    values = np.random.default_rng(0).standard_normal(TINY_SHAPE).astype(np.float32)
    request = infer_request("tiny", tensors_document({"x": values}))
    file = folder / "request"
    file.write_bytes(request)
    session = ort.InferenceSession(str(source), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": values})
    with (
        running(ours(folder / "repository", "16MiB"), "--port") as layerstream,
        running(peer(source)) as plain,
        running(peer(source, style="service")) as service,
    ):
        servers = {_LAYERSTREAM: layerstream, _PLAIN: plain, _SERVICE: service}
        for served in servers.values():
            _check(served, request, expected)
        return {
            "delay": delays(servers, request, runs),
            "clients": _CLIENTS,
            "load": "wrk" if has_wrk() else "clients of our own",
            "rate": rates(servers, file, rounds, seconds),
            "event_loop": {name: event_loop(served.pid) for name, served in servers.items()},
        }


def _compared(
    result: dict[str, Any], name: str, max_delay: float, min_rate: float
) -> dict[str, Any]:
    """Return our delay and rate over those of the peer ``name``, and whether both are within bounds."""
    delay, rate = result["delay"], result["rate"]
    delay_ratio = ratio(delay[_LAYERSTREAM]["p50_ms"], delay[name]["p50_ms"])
    rate_ratio = ratio(rate[_LAYERSTREAM]["per_second"], rate[name]["per_second"])
    return {
        "delay_ratio": delay_ratio,
        "delay_ratio_bound": max_delay,
        "rate_ratio": rate_ratio,
        "rate_ratio_bound": min_rate,
        "ok": (delay_ratio or 0) <= max_delay and (rate_ratio or 0) >= min_rate,
    }


def main() -> None:
    """Measure and print JSON; exit 1 when a ratio is not within its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tensor-runs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        result = _measure(Path(folder), options.runs, options.rounds, options.seconds)
        result["tensors"] = tensors(Path(folder), options.tensor_runs)
    result["compared"] = {
        name: _compared(result, name, *bounds) for name, bounds in _BOUNDS.items()
    }
    result["tensor_overhead_ms_bound"] = _MOST_OVERHEAD_MS
    result["ok"] = (
        all(peer_result["ok"] for peer_result in result["compared"].values())
        and result["tensors"]["raw in"]["overhead_ms"] <= _MOST_OVERHEAD_MS
    )
    end(result, result["ok"])


if __name__ == "__main__":
    main()
