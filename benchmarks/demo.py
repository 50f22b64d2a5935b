"""``make demo``: the main job from end to end, in less memory than the weights take.

Compiles the default model, serves it in less memory than its weights, with some for requests beside it,
classifies a photograph over HTTP, and prints the answer, the delay and the memory: planned, accounted for,
and as the kernel sees it.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from typing import Any

from benchmarks.cgroup import MemoryGroup, memory_group
from benchmarks.client import process_memory, wait_ready
from benchmarks.served_memory import free_port
from models.default import FOLDER as DEFAULT
from server.sizes import format_size

BUDGET = "2560KiB"
NAME = "cifar10"


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "server.cli", *arguments]


def _json(*arguments: str) -> Any:
    """Run a layerstream command; return the JSON that it prints."""
    done = subprocess.run(_command(*arguments, "--json"), stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def _post(url: str, body: bytes) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as response:
        return json.load(response)


def _metrics(base: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{base}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


@contextlib.contextmanager
def _group() -> Iterator[MemoryGroup | None]:
    """Yield a memory cgroup, or None where this user cannot make one."""
    try:
        with memory_group("layerstream-demo") as group:
            yield group
    except PermissionError:
        yield None
    except OSError as exc:
        print(f"(no memory cgroup here: {exc})")
        yield None


def _show(label: str, text: str) -> None:
    print(f"  {label:<34}{text}")


def _report(base: str, answer: dict[str, Any], pid: int, group: MemoryGroup | None) -> None:
    metrics = _metrics(base)
    kinds = {
        name.split('kind="')[1].split('"')[0]: int(value)
        for name, value in metrics.items()
        if name.startswith("layerstream_memory_bytes")
    }
    memory = process_memory(pid)
    core = int(metrics["layerstream_process_base_bytes"])
    print("answer")
    for item in answer["predictions"]:
        _show(item["label"], f"{item['probability']:.3f}")
    _show("delay of the sweep", f"{answer['delay_ms']:.1f} ms")
    print("memory")
    requests = int(metrics["layerstream_request_memory_bytes"])
    planned = int(metrics["layerstream_budget_used_bytes"]) - requests
    _show("planned for the model", format_size(planned))
    _show("set aside for requests", format_size(requests))
    parts = ", ".join(f"{kind} {format_size(size)}" for kind, size in kinds.items())
    _show("accounted for", f"{format_size(sum(kinds.values()))} ({parts})")
    _show("interpreter and libraries alone", format_size(core))
    _show("resident set, now", format_size(memory["rss_bytes"]))
    if group is not None:
        _show("kernel: peak of its cgroup", f"{format_size(group.peak_bytes)} (page cache counted)")


def main() -> None:
    """Run the demonstration; exit 1 when the answer is not a cat."""
    with tempfile.TemporaryDirectory() as folder:
        print("compile models/default/cifar10.onnx")
        files = ("--labels", f"{DEFAULT}/labels.txt", "--preprocess", f"{DEFAULT}/preprocess.toml")
        pack = _json("compile", f"{DEFAULT}/cifar10.onnx", "-o", f"{folder}/{NAME}", *files)
        _show("weights", format_size(pack["weight_bytes"]))
        _show("largest layer, largest chunk", f"{format_size(pack['largest_layer_bytes'])}, "
              f"{format_size(pack['largest_chunk_bytes'])}")  # fmt: skip
        port = free_port()
        base = f"http://127.0.0.1:{port}"
        print(f"serve it in {BUDGET}")
        serve = _command("serve", "--repository", folder, "--budget", BUDGET, "--port", str(port))
        with _group() as group, tempfile.TemporaryFile("w+") as log:
            process = (
                subprocess.Popen(serve, stderr=log, text=True)
                if group is None
                else group.start(serve, stderr=log)
            )
            try:
                if not wait_ready(base, process):
                    log.seek(0)
                    sys.exit(f"the server did not start: {log.read()[-2000:]}")
                photograph = (DEFAULT / "cat.png").read_bytes()
                answer = _post(f"{base}/v2/models/{NAME}:classify?top_k=3", photograph)
                _report(base, answer, process.pid, group)
            finally:
                process.terminate()
                code = process.wait(30)
        print(f"stopped (exit status {code})")
    if answer["predictions"][0]["label"] != "cat" or code != 0:
        sys.exit(1)


if __name__ == "__main__":
    main()
