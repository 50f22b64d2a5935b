"""How a server answers probes while it plans: from the moment its port is open, and under long work later.

A plain client asks ``/v2/health/live`` every few milliseconds, on a connection of its own each time as
probes do, and counts from when it meant to ask. CPU seconds are of the server and its children, as the
kernel counts them. ``idle`` is the same with nothing going on: how late this machine is by itself.

Run as ``python -m benchmarks.repository.start REPOSITORY MODEL --budget 37MiB [--upload FILE.onnx]``; exit
1 where a probe took longer than ``--most-ms``, or the server more than ``--most-cpu`` CPU seconds until it
was ready.
"""

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine.processes import children, cpu_seconds_of_all
from benchmarks.servers.client import KeptClient, beside, process_memory
from benchmarks.servers.served import free_port, ours
from benchmarks.turns import end
from models.processes import child_environment

_EVERY_SECONDS = 0.02
_PATIENCE_SECONDS = 600.0
#: Nothing goes on for so long: what is late then is the machine's doing, and the client's.
_IDLE_SECONDS = 10.0


@dataclass
class Probes:
    """Asks again and again whether the server lives, until it is stopped; ``lags`` in seconds."""

    port: int
    lags: list[float] = field(default_factory=list)
    failures: int = 0

    def run(self, over: threading.Event) -> None:
        """Probe until it is ``over``; a late probe does not delay the next."""
        due = time.monotonic()
        while not over.is_set():
            due += _EVERY_SECONDS
            time.sleep(max(due - time.monotonic(), 0.0))
            try:
                status = get(self.port, "/v2/health/live")[0]
            except OSError:
                status = 0
            self.failures += status != 200
            self.lags.append(time.monotonic() - due)
            due = max(due, time.monotonic() - _EVERY_SECONDS)

    def figures(self) -> dict[str, Any]:
        """Return the lags in milliseconds."""
        found = sorted(self.lags)
        return {
            "probes": len(found),
            "failures": self.failures,
            "p50_ms": round(found[len(found) // 2] * 1e3, 2),
            "p99_ms": round(found[len(found) * 99 // 100] * 1e3, 2),
            "p100_ms": round(found[-1] * 1e3, 2),
        }


def get(port: int, path: str, timeout: float = _PATIENCE_SECONDS) -> tuple[int, bytes]:
    """Return status and body of one request on a connection of its own."""
    return ask(port, "GET", path, timeout=timeout)


def ask(
    port: int, method: str, path: str, body: bytes = b"", timeout: float = _PATIENCE_SECONDS
) -> tuple[int, bytes]:
    """Return status and body of one request on a connection of its own."""
    with closing(KeptClient(port, timeout)) as client:
        return client.ask(method, path, body or None)


def during(port: int, process: int, work: Callable[[], Any]) -> dict[str, Any]:
    """Return how probes were answered while ``work`` went on, and what that took."""
    probes = Probes(port)
    began, computed = time.monotonic(), cpu_seconds_of_all(process)
    with beside(probes.run):
        said = work()
        took = time.monotonic() - began
    cpu = cpu_seconds_of_all(process) - computed
    found = {
        "seconds": round(took, 2),
        "cpu_seconds": round(cpu, 2),
        **probes.figures(),
        "said": said,
    }
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def _anonymous_bytes(process: int) -> int:
    """Return the memory of ``process`` and of its children that no file backs."""
    total = 0
    for number in (process, *children(process)):
        with contextlib.suppress(OSError):  # it has ended
            total += process_memory(number)["rss_anonymous_bytes"]
    return total


def _until_ready(port: int) -> dict[str, int]:
    """Wait until models serve; return how often each answer came before."""
    counted: dict[str, int] = {}
    ends = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < ends:
        status, body = get(port, "/v2/health/ready")
        said = f"{status} {body[:200].decode()}"
        counted[said] = counted.get(said, 0) + 1
        if status == 200:
            return counted
        time.sleep(0.02)
    raise SystemExit(f"not ready: {counted}")


def _settled(process: int, quiet_seconds: float = 3.0) -> dict[str, float]:
    """Wait until no child of the server searches for plans; return after how many seconds that was."""
    began = last = time.monotonic()
    while time.monotonic() - last < quiet_seconds and last - began < _PATIENCE_SECONDS:
        time.sleep(0.05)
        if children(process):
            last = time.monotonic()
    return {"seconds": round(last - began, 2)}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Start a server, and return what each phase gave."""
    port = free_port()
    flags = ["--models", options.model, "--model-control", "explicit", "--allow-admin"]
    command = ours(options.repository, options.budget, *flags, "--port", str(port))
    server = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=child_environment()
    )
    try:
        began = time.monotonic()
        _until_open(port, server)
        figures: dict[str, Any] = {"port_open_seconds": round(time.monotonic() - began, 2)}
        figures["start"] = during(port, server.pid, lambda: _until_ready(port))
        figures["cpu_until_ready"] = round(cpu_seconds_of_all(server.pid), 2)
        figures["background"] = during(port, server.pid, lambda: _settled(server.pid))
        figures["cpu_until_settled"] = round(cpu_seconds_of_all(server.pid), 2)
        figures["idle"] = during(port, server.pid, lambda: time.sleep(_IDLE_SECONDS))
        figures["anonymous_bytes"] = _anonymous_bytes(server.pid)
        model = options.model
        limit = json.dumps({"memory_bytes": options.replan_bytes}).encode()
        replan = f"/v2/repository/models/{model}/replan"
        figures["replan"] = during(
            port, server.pid, lambda: _short(ask(port, "POST", replan, limit))
        )
        frontier = f"/page/models/{model}/frontier"
        figures["frontier"] = during(port, server.pid, lambda: _short(get(port, frontier)))
        if options.upload:
            content = Path(options.upload).read_bytes()
            path = "/v2/repository/models/uploaded/upload"
            figures["upload"] = during(
                port, server.pid, lambda: _short(ask(port, "POST", path, content))
            )
    finally:
        server.terminate()
        figures["stderr"] = server.communicate(timeout=60)[1][-1500:].decode().splitlines()[-6:]
    return figures


def _short(answer: tuple[int, bytes]) -> str:
    return f"{answer[0]} {answer[1][:160].decode(errors='replace')}"


def _until_open(port: int, server: "subprocess.Popen[bytes]") -> None:
    while server.poll() is None:
        with socket.socket() as knocking:
            if knocking.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.005)
    raise SystemExit("the server ended: " + server.communicate()[1][-500:].decode())


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", type=Path)
    parser.add_argument("model")
    parser.add_argument("--budget", default="37MiB")
    parser.add_argument("--replan-bytes", type=int, default=30_000_000)
    parser.add_argument("--upload", help="an ONNX file that is uploaded while probes go on")
    parser.add_argument("--most-ms", type=float, default=100.0)
    parser.add_argument("--most-cpu", type=float, default=3.0)
    options = parser.parse_args()
    found = measure(options)
    late = [
        name for name, item in found.items() if isinstance(item, dict) and _is_late(item, options)
    ]
    end(found, not late and found["cpu_until_ready"] <= options.most_cpu)


def _is_late(phase: dict[str, Any], options: argparse.Namespace) -> bool:
    return bool(phase["p100_ms"] > options.most_ms or phase["failures"])


if __name__ == "__main__":
    main()
