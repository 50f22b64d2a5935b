"""Replicas of Ray Serve beside one plain process, six small models: requests/s, and one killed under load.

Every answer is compared with ONNX Runtime's. Killed, the requests that a replica had are asked again by the
entry of deploy/ray; clients should see nothing but right answers, and another replica soon.

Run as ``python -m benchmarks.ray_serve [--repository FOLDER --sources FOLDER --models A,B,...]`` in an
environment with ray[serve]; exit 1 unless no answer was wrong and the replica came back.
"""

import argparse
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.load.mixed import AskedModel, LoadResult, MixedLoad
from benchmarks.many_models import asked_models, parsed
from benchmarks.servers.client import fetch, process_memory
from benchmarks.servers.served import free_port, ours, running
from benchmarks.turns import end

_NETWORKS = "squeezenet1.1,squeezenet1.0,mobilenetv1,mobilenetv2,darknet-tiny,resnet18"
_RESOLUTION = 64
_ROOT = Path(__file__).parents[1]
_RECOVERY_SECONDS = 60.0
# Ray's processes tell its exporter so often.
_EXPORT_SECONDS = 11.0


def replicas() -> list[int]:
    """Return the processes of replicas with a budget on this machine."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name = (folder / "cmdline").read_bytes().rstrip(b"\0")
        except OSError:  # it has ended
            continue
        if name.startswith(b"ray::ServeReplica:") and b":small" in name:
            found.append(int(folder.name))
    return sorted(found)


class _Killer(threading.Thread):
    """Kills a replica after ``seconds``; ``recovered``: until Ray has seen it and as many answer again."""

    def __init__(self, seconds: float, count: Callable[[], int]) -> None:
        super().__init__()
        self._seconds, self._count = seconds, count
        self.recovered: float | None = None

    def run(self) -> None:
        time.sleep(self._seconds)
        before = replicas()
        os.kill(before[0], signal.SIGKILL)
        began = time.monotonic()
        seen = False
        while self.recovered is None and time.monotonic() < began + _RECOVERY_SECONDS:
            time.sleep(0.1)
            running = self._count()
            seen = seen or running < len(before)
            if seen and running == len(before):
                self.recovered = round(time.monotonic() - began, 1)


def _lost(port: int) -> dict[str, int]:
    """Return what Ray's metrics say of requests whose replica died, by what came of them."""
    lines = fetch(f"http://127.0.0.1:{port}/metrics").decode().splitlines()
    found = (
        re.match(r'ray_layerstream_lost_requests\S*outcome="(\w+)"\S* (\S+)', line)
        for line in lines
    )
    return {each[1]: int(float(each[2])) for each in found if each}


def _summary(load: LoadResult, seconds: float) -> dict[str, Any]:
    delays = sorted(delay for each in load.delays.values() for delay in each)
    return {
        "right": sum(load.right.values()),
        "requests_per_second": round(sum(load.right.values()) / seconds, 1),
        "median_ms": round(1000 * delays[len(delays) // 2], 1) if delays else None,
        "longest_ms": round(1000 * delays[-1], 1) if delays else None,
        "statuses": {str(status): count for status, count in load.statuses.items()},
        "faults": load.faults[:10],
        "wrong": sum("is off by" in fault or "no output" in fault for fault in load.faults),
        "errors": len(load.faults),
    }


def _plain(repository: Path, asked: Sequence[AskedModel], options: argparse.Namespace) -> Any:
    models = ",".join(dict.fromkeys(each.model for each in asked))
    command = ours(repository, options.budget, "--models", models, "--budget-policy", "evict-lru")
    with running(command, "--port") as served:
        MixedLoad(served.port, asked, options.connections).run(options.seconds / 4)
        load = MixedLoad(served.port, asked, options.connections).run(options.seconds)
    return _summary(load, options.seconds)


def _ray(repository: Path, asked: Sequence[AskedModel], options: argparse.Namespace) -> Any:
    sys.path.append(str(_ROOT / "deploy/ray"))
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = f"{_ROOT}:{_ROOT / 'deploy/ray'}"  # of Ray's processes
    import ray
    from application import Arguments, build
    from ray import serve

    port, metrics = free_port(), free_port()
    models = list(dict.fromkeys(each.model for each in asked))
    group = {
        "budget": options.budget,
        "models": models,
        "min_replicas": options.replicas,
        "max_replicas": options.replicas,
        "threads": options.threads,
    }
    ray.init(
        num_cpus=max(2, options.replicas * options.threads),
        object_store_memory=80 << 20,
        include_dashboard=False,
        log_to_driver=False,
        _metrics_export_port=metrics,
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(build(Arguments(repository=repository, budgets={"small": group})))

        def running_replicas() -> int:
            states = serve.status().applications["default"].deployments["small"].replica_states
            return int(states.get("RUNNING", 0))

        MixedLoad(port, asked, options.connections).run(options.seconds / 4)
        quiet = MixedLoad(port, asked, options.connections).run(options.seconds)
        memory = max(process_memory(each)["rss_anonymous_bytes"] for each in replicas())
        killer = _Killer(options.seconds / 4, running_replicas)
        killer.start()
        killed = MixedLoad(port, asked, options.connections).run(options.seconds)
        killer.join()
        time.sleep(_EXPORT_SECONDS)
        return {
            "quiet": _summary(quiet, options.seconds),
            "killed": _summary(killed, options.seconds),
            "lost_requests": _lost(metrics),
            "recovered_seconds": killer.recovered,
            "replica_anonymous_bytes": memory,
            "replica_memory_bytes": Arguments(repository=repository, budgets={"small": group})
            .budgets["small"]
            .memory_bytes,
        }
    finally:
        serve.shutdown()
        ray.shutdown()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="64MiB")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each replica")
    parser.add_argument("--seconds", type=float, default=20.0)
    return parsed(parser, _NETWORKS)


def main() -> None:
    """Run it and print what came of it."""
    options = _options()
    with tempfile.TemporaryDirectory(dir=".") as text:
        repository, _, asked = asked_models(options, Path(text).resolve(), _RESOLUTION)
        found = {
            "plain": _plain(repository, asked, options),
            "ray": _ray(repository, asked, options),
        }
    ray = found["ray"]
    loads = (found["plain"], ray["quiet"], ray["killed"])
    wrong = any(load["wrong"] for load in loads) or ray["recovered_seconds"] is None
    end(found, not wrong)


if __name__ == "__main__":
    main()
