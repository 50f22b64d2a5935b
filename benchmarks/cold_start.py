"""Cold start: the first answer of a fresh process, nothing of the model in the page cache.

Layerstream (``auto``), ONNX Runtime and OpenVINO take turns, each run a process and a memory cgroup of
its own. The clock starts when the libraries are imported. As root all page cache is dropped before every
run and libraries are read again by a process before the one that counts; else that of the model's files.
Where the pack has a profile, its plan was found at an earlier start and is kept beside it: the usual case.

Run as ``python -m benchmarks.cold_start MODEL.onnx PACK [--runs 7]``; exit 1 above 0.75 of the best peer's
time or 0.4 of its memory.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cgroup import memory_group
from benchmarks.ours import plan_auto
from models.pack import open_pack
from pipeline.inputs import random_inputs
from pipeline.peers import ONNXRUNTIME, OPENVINO, PEERS
from pipeline.peers.peer import save_inputs

OURS = "layerstream"
_WANTED_SECONDS, _WANTED_BYTES = 0.75, 0.4
_DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def drop_cache(files: list[Path]) -> None:
    """Take ``files`` out of the page cache, and as root everything else."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    if os.access(_DROP_CACHES, os.W_OK):
        _DROP_CACHES.write_text("1", encoding="ascii")


def warm_library(name: str) -> None:
    """Let another process import what ``name`` imports: the libraries' files are in the cache then."""
    if name == OURS:
        code = "import benchmarks.ours"
    else:
        code = f"from pipeline.peers.runtimes import *; import_library({name!r})"
    subprocess.run([sys.executable, "-c", code], check=True)


def measure(
    name: str, model: Path, options: argparse.Namespace, inputs: Path, out: Path
) -> dict[str, Any]:
    """Run one fresh process; return its figures."""
    folder = model if model.is_dir() else model.parent
    names = [path for path in folder.rglob("*") if path.is_file()]
    drop_cache(names if model.is_dir() else [model])
    warm_library(name)
    with memory_group("layerstream-cold") as group:
        arguments = [name, str(model), str(options.weights), str(inputs), str(options.threads)]
        command = [sys.executable, "-m", "benchmarks.cold_child", *arguments, str(out)]
        process = group.start(command)
        _, message = process.communicate()
        if process.returncode:
            raise SystemExit(f"{name}: {message[-500:]}")
        peak = group.peak_bytes
    figures: dict[str, Any] = json.loads(out.read_text("utf-8"))
    return {**figures, "cgroup_peak_bytes": peak}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians over ``runs``."""
    steps = {step: median(run["steps"][step] for run in runs) for step in runs[0]["steps"]}
    keys = ("seconds", "process_peak_bytes", "cgroup_peak_bytes")
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
    plan_auto(pack, options.weights, options.threads)
    models = {OURS: pack.folder, ONNXRUNTIME: options.onnx, OPENVINO: options.onnx}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in models}
    with tempfile.TemporaryDirectory() as folder:
        inputs = save_inputs(random_inputs(pack.manifest), Path(folder))
        for turn in range(options.runs):
            first = turn % len(models)
            order = [*models][first:] + [*models][:first]
            for name in order:
                out = Path(folder, "figures.json")
                runs[name].append(measure(name, models[name], options, inputs, out))
    rows = {name: summary(found) for name, found in runs.items()}
    seconds = rows[OURS]["seconds"] / min(rows[name]["seconds"] for name in PEERS)
    memory = rows[OURS]["process_peak_bytes"] / min(
        rows[name]["process_peak_bytes"] for name in PEERS
    )
    result = {"model": pack.name, "runs": options.runs, "rows": rows}
    print(json.dumps({**result, "seconds_ratio": seconds, "memory_ratio": memory}, indent=2))
    sys.exit(0 if seconds <= _WANTED_SECONDS and memory <= _WANTED_BYTES else 1)


if __name__ == "__main__":
    main()
