"""Cold start: from the command to the first answer of a fresh process.

``layerstream run`` (``auto``), and ONNX Runtime and OpenVINO in Python, take turns, each a process and a
memory cgroup of its own, in an environment that nothing else uses. The clock starts with the process, so
interpreter and libraries count. Neither these nor the model are in the page cache; with ``--warm`` all are.
Where the pack has a profile, its plan was found at an earlier start and is kept beside it: the usual case.

Run as ``python -m benchmarks.cold_start MODEL.onnx PACK [--runs 7] [--warm]``; exit 1 above 0.75 of the
best peer's time or 0.4 of its anonymous memory.
"""

import argparse
import os
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.machine.environment import Environment, copy_environment
from benchmarks.machine.sampling import run_sampled
from benchmarks.turns import end, in_turns
from models.packs.pack import open_pack
from models.processes import python_command
from pipeline.benchmark.ours import StreamedArchitecture, plan_way
from pipeline.devices.cpu import CpuDevice
from pipeline.measuring.sweeps import random_inputs
from pipeline.peers import PEERS
from pipeline.peers.peer import save_inputs
from pipeline.program.prepare import prepare

OURS = "layerstream"
_WANTED_SECONDS, _WANTED_BYTES = 0.75, 0.4


def measure(
    command: list[str], environment: Environment, model: Path, warm: bool
) -> dict[str, float]:
    """Run ``command`` in a fresh process; return its figures."""
    left = 0 if warm else environment.drop(model)
    run = run_sampled("layerstream-cold", environment.private(command))
    if run.status:
        raise SystemExit(f"{command}: {run.message}")
    return {
        "seconds": run.answered_seconds,
        "cpu_seconds": run.cpu_seconds,
        **run.figures,
        "left_in_page_cache_bytes": left,
    }


def summary(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the medians over ``runs``."""
    return {key: median(run[key] for run in runs) for key in runs[0]}


def commands(options: argparse.Namespace, pack: Path, inputs: Path) -> dict[str, list[str]]:
    """Return what answers ``inputs`` once, by name."""
    threads = str(options.threads)
    ours = python_command("cli", "run", str(pack), "--input", str(inputs), "--json")
    ours += ["--weights", f"{options.weights}%", "--threads", threads]
    given = [str(options.onnx), str(inputs), threads]
    return {
        OURS: ours,
        **{name: python_command("benchmarks.children.cold_child", name, *given) for name in PEERS},
    }


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("onnx", type=Path)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--weights", type=float, default=5.0, help="percent of them in memory")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--warm", action="store_true", help="files stay in the page cache")
    options = parser.parse_args()
    options.onnx = options.onnx.resolve()
    pack = open_pack(options.pack.resolve())
    device = CpuDevice(options.threads)
    plan_way(prepare(pack, device), StreamedArchitecture("auto", options.weights), device)
    models = {OURS: pack.folder, **dict.fromkeys(PEERS, options.onnx)}
    with tempfile.TemporaryDirectory(dir=".") as temporary:
        folder = Path(temporary).resolve()
        environment = copy_environment(folder / "environment", "openvino")
        inputs = save_inputs(random_inputs(pack.manifest), folder)
        answering = commands(options, pack.folder, inputs)
        players = {
            name: partial(measure, answering[name], environment, models[name], options.warm)
            for name in models
        }
        runs = in_turns(players, options.runs)
    rows = {name: summary(starts) for name, starts in runs.items()}
    seconds = rows[OURS]["seconds"] / min(rows[name]["seconds"] for name in PEERS)
    memory = rows[OURS]["anonymous_peak_bytes"] / min(
        rows[name]["anonymous_peak_bytes"] for name in PEERS
    )
    result = {"model": pack.name, "runs": options.runs, "warm": options.warm, "rows": rows}
    end(
        {**result, "seconds_ratio": seconds, "memory_ratio": memory},
        seconds <= _WANTED_SECONDS and memory <= _WANTED_BYTES,
    )


if __name__ == "__main__":
    main()
