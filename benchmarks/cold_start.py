"""Cold start: the first answer of a fresh process, neither libraries nor model in the page cache.

Layerstream (``auto``), ONNX Runtime and OpenVINO take turns, each run a process and a memory cgroup of
its own, in an environment that nothing else uses. The clock starts when the libraries are imported.
Where the pack has a profile, its plan was found at an earlier start and is kept beside it: the usual case.

Run as ``python -m benchmarks.cold_start MODEL.onnx PACK [--runs 7]``; exit 1 above 0.75 of the best peer's
time or 0.4 of its anonymous memory.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine.environment import Environment, copy_environment
from benchmarks.machine.sampling import sampled_group
from models.packs.pack import open_pack
from pipeline.benchmark.ours import Way, plan_way
from pipeline.devices.cpu import CpuDevice
from pipeline.measuring.sample_inputs import random_inputs
from pipeline.peers import ONNXRUNTIME, OPENVINO, PEERS
from pipeline.peers.peer import save_inputs
from pipeline.program.prepare import prepare

OURS = "layerstream"
_WANTED_SECONDS, _WANTED_BYTES = 0.75, 0.4


def measure(
    name: str,
    model: Path,
    options: argparse.Namespace,
    environment: Environment,
    inputs: Path,
) -> dict[str, Any]:
    """Run one fresh process; return its figures."""
    out = inputs.with_name("figures.json")
    arguments = [
        name,
        str(model),
        str(options.weights),
        str(inputs),
        str(options.threads),
        str(out),
    ]
    command = [sys.executable, "-m", "benchmarks.children.cold_child", *arguments]
    left = environment.drop(model)
    with sampled_group("layerstream-cold") as memory:
        process = memory.group.start(environment.private(command))
        _, message = process.communicate()
        if process.returncode:
            raise SystemExit(f"{name}: {message[-500:]}")
        peaks = memory.figures()
    figures: dict[str, Any] = json.loads(out.read_text("utf-8"))
    return {**figures, **peaks, "left_in_page_cache_bytes": left}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians over ``runs``."""
    steps = {step: median(run["steps"][step] for run in runs) for step in runs[0]["steps"]}
    keys = [key for key in runs[0] if key != "steps"]
    return {**{key: median(run[key] for run in runs) for key in keys}, "steps": steps}


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("onnx", type=Path)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--weights", type=float, default=5.0, help="percent of them in memory")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    pack = open_pack(options.pack)
    device = CpuDevice(options.threads)
    plan_way(prepare(pack, device), Way("auto", options.weights), device)
    models = {OURS: pack.folder, ONNXRUNTIME: options.onnx, OPENVINO: options.onnx}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in models}
    with tempfile.TemporaryDirectory(dir=".") as temporary:
        folder = Path(temporary).resolve()
        environment = copy_environment(folder / "environment", "openvino")
        inputs = save_inputs(random_inputs(pack.manifest), folder)
        for turn in range(options.runs):
            first = turn % len(models)
            order = [*models][first:] + [*models][:first]
            for name in order:
                figures = measure(name, models[name], options, environment, inputs)
                runs[name].append(figures)
    rows = {name: summary(found) for name, found in runs.items()}
    seconds = rows[OURS]["seconds"] / min(rows[name]["seconds"] for name in PEERS)
    memory = rows[OURS]["anonymous_peak_bytes"] / min(
        rows[name]["anonymous_peak_bytes"] for name in PEERS
    )
    result = {"model": pack.name, "runs": options.runs, "rows": rows}
    print(json.dumps({**result, "seconds_ratio": seconds, "memory_ratio": memory}, indent=2))
    sys.exit(0 if seconds <= _WANTED_SECONDS and memory <= _WANTED_BYTES else 1)


if __name__ == "__main__":
    main()
