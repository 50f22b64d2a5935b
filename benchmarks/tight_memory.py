"""A network of more than 200 MB of weights answers inside a memory cgroup of 200 MB, all told.

The same requests go to Layerstream and to FastAPI with ONNX Runtime, each in a cgroup with that limit
(interpreter, libraries and page cache included). The peer is expected to be killed or to fail.

Run as ``python -m benchmarks.tight_memory [--network resnet152] [--limit 200MB] [--requests 20]``.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cgroup import memory_group
from benchmarks.client import post_tensor, wait_ready
from benchmarks.served_memory import free_port
from models import zoo
from models.compiler import compile_onnx
from server.sizes import parse_size


def attempt(command: list[str], port: int, model: str, limit: int, requests: int) -> dict[str, Any]:
    """Serve inside ``limit`` bytes and send requests until one fails; return what happened."""
    base = f"http://127.0.0.1:{port}"
    generator = np.random.default_rng(0)
    answered, failure = 0, ""
    with memory_group("layerstream-tight", limit) as group:
        process = group.start(command)
        try:
            if not wait_ready(base, process):
                failure = "did not become ready"
            while not failure and answered < requests:
                tensor = generator.standard_normal((1, 3, 224, 224), np.float32)
                post_tensor(f"{base}/v2/models/{model}/infer", "image", tensor)
                answered += 1
        except OSError as exc:
            failure = repr(exc)
        finally:
            exit_code = process.poll()
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
        return {
            "answered": answered,
            "failure": failure,
            "exit_code": exit_code,
            "oom_kills": group.oom_kills,
            "cgroup_peak_bytes": group.peak_bytes,
        }


def main() -> None:
    """Run both and print JSON; exit 1 unless Layerstream answered all and the peer did not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="resnet152")
    parser.add_argument("--limit", default="200MB")
    parser.add_argument("--budget", default="24MiB")
    parser.add_argument("--requests", type=int, default=20)
    options = parser.parse_args()
    limit = parse_size(options.limit)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        source = Path(folder, f"{options.network}.onnx")
        zoo.build(options.network, source)
        pack = compile_onnx(source, Path(folder, "repository", options.network))
        weights = (pack / "weights.bin").stat().st_size
        port = free_port()
        serve = ["serve", "--repository", f"{folder}/repository", "--budget", options.budget]
        command = [sys.executable, "-m", "server.cli", *serve, "--port", str(port)]
        ours = attempt(command, port, options.network, limit, options.requests)
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.peer_server", str(source), str(port)]
        peer = attempt(command, port, options.network, limit, options.requests)
    result = {
        "network": options.network,
        "weight_bytes": weights,
        "limit_bytes": limit,
        "requests": options.requests,
        "layerstream": ours,
        "fastapi_onnxruntime": peer,
    }
    print(json.dumps(result, indent=2))
    sys.exit(0 if ours["answered"] == options.requests and peer["failure"] else 1)


if __name__ == "__main__":
    main()
