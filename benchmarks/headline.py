"""The headline: YOLOv4 in 5 % of its weights, faster than ONNX Runtime with all of them in memory.

Two processes, each in a memory cgroup of its own, take turns: Layerstream (``auto``) and ONNX Runtime with
the file that the pack was compiled from. Delays are medians; memory is the cgroup's peak, interpreter,
libraries and page cache included.

Run as ``python -m benchmarks.headline yolov4.onnx PACK [--runs 20]``; exit 1 above 0.70 of the delay or 0.5
of the memory.
"""

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cgroup import MemoryGroup, memory_group
from models.pack import open_pack
from pipeline.benchmark.rows import relative_error
from pipeline.inputs import random_inputs
from pipeline.peers import ONNXRUNTIME
from pipeline.peers.peer import Peer, peer_command, save_inputs

OURS = "layerstream"
_WANTED_DELAY, _WANTED_MEMORY, _WANTED_ERROR = 0.70, 0.5, 1e-5
_WARM_UP = 2


def take_turns(peers: list[Peer], runs: int) -> dict[str, list[float]]:
    """Return the delays of each in seconds; nobody's threads run in another one's turn."""
    delays: dict[str, list[float]] = {peer.name: [] for peer in peers}
    for turn in range(-_WARM_UP, runs):
        for peer in peers if turn % 2 else reversed(peers):
            seconds = peer.run()
            peer.settle()
            if turn >= 0:
                delays[peer.name].append(seconds)
    return delays


def main() -> None:
    """Measure both and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("onnx", type=Path)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--weights", type=float, default=5.0, help="percent of them in memory")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    pack, threads = open_pack(options.pack), options.threads
    inputs = random_inputs(pack.manifest)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file = save_inputs(inputs, folder)
        ours = [sys.executable, "-m", "benchmarks.ours", str(pack.folder), str(options.weights)]
        commands = {
            OURS: [*ours, str(file), str(threads)],
            ONNXRUNTIME: peer_command(ONNXRUNTIME, options.onnx, inputs, threads, folder),
        }
        groups: dict[str, MemoryGroup] = {}
        peers = []
        for name, command in commands.items():
            groups[name] = stack.enter_context(memory_group(f"layerstream-headline-{len(groups)}"))
            peers.append(Peer(name, groups[name].inside(command), folder))
            stack.callback(peers[-1].close)
        delays = take_turns(peers, options.runs)
        outputs = [peer.outputs([port.name for port in pack.manifest.outputs]) for peer in peers]
        peaks = {name: group.peak_bytes for name, group in groups.items()}
    error = relative_error(*outputs)
    rows = {
        name: {"delay_ms": 1e3 * median(delays[name]), "cgroup_peak_bytes": peaks[name]}
        for name in commands
    }
    ratios: dict[str, Any] = {
        f"{key}_ratio": rows[OURS][key] / rows[ONNXRUNTIME][key]
        for key in ("delay_ms", "cgroup_peak_bytes")
    }
    result = {"model": pack.name, "weights_percent": options.weights, "runs": options.runs}
    print(json.dumps({**result, "rows": rows, **ratios, "max_relative_error": error}, indent=2))
    met = ratios["delay_ms_ratio"] <= _WANTED_DELAY
    met &= ratios["cgroup_peak_bytes_ratio"] <= _WANTED_MEMORY
    met &= error is not None and error <= _WANTED_ERROR
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
