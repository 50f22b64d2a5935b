"""How much memory a served model takes, as the kernel counts it, beside the obvious server.

Both servers answer the same requests over HTTP, each in a memory cgroup of its own (page cache counted).
Three figures must tell one story: the peak of the cgroup, the resident set, our own accounting.

Run as ``python -m benchmarks.served_memory [--network resnet50] [--budget 24MiB] [--requests 50]``.
"""

import argparse
import json
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.cgroup import memory_group
from benchmarks.client import post_tensor, process_memory, wait_ready
from models import zoo
from models.compiler import compile_onnx
from server.transport.listener import listen

Answers = list[NDArray[np.float32]]


def free_port() -> int:
    """Return a loopback port that nothing listens on."""
    with listen("127.0.0.1", 0) as listener:
        port: int = listener.getsockname()[1]
        return port


def measure(
    name: str, command: list[str], port: int, model: str, inputs: Answers
) -> tuple[dict[str, Any], Answers]:
    """Serve in a fresh cgroup, send ``inputs``; return memory figures and the answers."""
    base = f"http://127.0.0.1:{port}"
    with memory_group(f"layerstream-{name}") as group:
        process = group.start(command)
        try:
            if not wait_ready(base, process):
                raise RuntimeError(f"{name} did not start: {process.communicate()[1][-500:]}")
            url = f"{base}/v2/models/{model}/infer"
            answers = [post_tensor(url, "image", array) for array in inputs]
            figures: dict[str, Any] = {"cgroup_peak_bytes": group.peak_bytes}
            figures |= process_memory(process.pid)
            if name == "layerstream":
                figures["metrics"] = _accounting(base)
        finally:
            process.terminate()
            process.wait(30)
    return figures, answers


def _accounting(base: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{base}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    prefixes = ("layerstream_memory_bytes", "layerstream_budget", "layerstream_process_base")
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines)
        if name.startswith(prefixes)
    }


def main() -> None:
    """Measure both and print JSON; exit 1 when answers differ by more than 1e-5."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--budget", default="24MiB")
    parser.add_argument("--requests", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        source = Path(folder, f"{options.network}.onnx")
        zoo.build(options.network, source)
        compile_onnx(source, Path(folder, "repository", options.network))
        generator = np.random.default_rng(0)
        inputs = [
            generator.standard_normal((1, 3, 224, 224), np.float32) for _ in range(options.requests)
        ]
        python, ours, theirs = sys.executable, free_port(), free_port()
        serve = ["serve", "--repository", f"{folder}/repository", "--budget", options.budget]
        streamed, answers = measure(
            "layerstream",
            [python, "-m", "server.cli", *serve, "--port", str(ours)],
            ours,
            options.network,
            inputs,
        )
        peer, expected = measure(
            "peer",
            [python, "-m", "benchmarks.peer_server", str(source), str(theirs)],
            theirs,
            options.network,
            inputs,
        )
    difference = max(float(np.abs(a - b).max()) for a, b in zip(answers, expected, strict=True))
    saved = peer["cgroup_peak_bytes"] - streamed["cgroup_peak_bytes"]
    result = {
        "network": options.network,
        "budget": options.budget,
        "requests": options.requests,
        "layerstream": streamed,
        "fastapi_onnxruntime": peer,
        "cgroup_peak_saved_bytes": saved,
        "largest_difference": difference,
    }
    print(json.dumps(result, indent=2))
    sys.exit(0 if difference <= 1e-5 else 1)


if __name__ == "__main__":
    main()
