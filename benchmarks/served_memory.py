"""How much memory a served model takes, as the kernel counts it, beside the obvious servers.

All answer the same requests over HTTP, each a fresh process in a memory cgroup of its own, without a limit,
libraries and model read from the disk. Three figures must tell one story: the peaks of the cgroup, the
resident set, our own accounting.

Run as ``python -m benchmarks.served_memory [--network resnet50] [--budget 24MiB] [--requests 50]``.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine.environment import copy_environment, shared_files
from benchmarks.servers.attempt import Attempt, Task, attempt
from benchmarks.servers.client import fetch, process_memory
from benchmarks.servers.contenders import OURS, contenders
from benchmarks.servers.served import Served
from benchmarks.tight_memory import largest_difference
from models import zoo
from models.compiler import compile_onnx
from pipeline.peers.cgroup import memory_group

_ACCOUNTS = ("layerstream_memory_bytes", "layerstream_budget", "layerstream_process_base")


def _accounting(base: str) -> dict[str, float]:
    lines = fetch(f"{base}/metrics").decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines)
    return {name: float(value) for name, _, value in pairs if name.startswith(_ACCOUNTS)}


def _look(served: Served) -> dict[str, Any]:
    """Return the resident set, and what of it may be charged to others."""
    shared = shared_files(served.pid, Path.cwd())
    names = sorted(Path(path).name for path in shared)
    held = {"shared_bytes": sum(shared.values()), "shared_files": names}
    return {**process_memory(served.pid), **held}


def _look_at_ours(served: Served) -> dict[str, Any]:
    return _look(served) | {"metrics": _accounting(served.base)}


_LOOKS = {OURS: _look_at_ours}


def _measure(folder: Path, options: argparse.Namespace) -> dict[str, Attempt]:
    source = folder / f"{options.network}.onnx"
    zoo.build(options.network, source)
    compile_onnx(source, folder / "repository" / options.network)
    environment = copy_environment(folder / "environment", "openvino")
    generator = np.random.default_rng(0)
    shape = (1, 3, 224, 224)
    requests = [generator.standard_normal(shape, np.float32) for _ in range(options.requests)]
    task = Task(options.network, "image", requests)

    found = contenders(source, folder / "repository", options.budget)
    return {
        name: attempt(contender, environment, task, memory_group, look=_LOOKS.get(name, _look))
        for name, contender in found.items()
    }


def main() -> None:
    """Measure all and print JSON; exit 1 when one fails or answers differ by more than 1e-5."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--budget", default="24MiB")
    parser.add_argument("--requests", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        attempts = _measure(Path(folder).resolve(), options)
    rows = {name: found.as_dict() | (found.details or {}) for name, found in attempts.items()}
    difference = largest_difference({(name, None): [found] for name, found in attempts.items()})
    result = {
        "network": options.network,
        "budget": options.budget,
        "requests": options.requests,
        **rows,
        "largest_difference": difference,
    }
    print(json.dumps(result, indent=2))
    failed = any(found.failure for found in attempts.values())
    sys.exit(1 if failed or difference > 1e-5 else 0)


if __name__ == "__main__":
    main()
