"""The headline: YOLOv4 in 5 % of its weights beside the runtimes that hold all of them in memory.

Layerstream (``auto``), ONNX Runtime and, where it is installed, OpenVINO take turns, each a process in a
memory cgroup, with an environment and a copy of the model's file of its own; nothing of these is in
the page cache at first. Delays are medians. Memory: peaks of anonymous memory, of file pages, of all, and
the anonymous memory held after the turns, since peers need more while they load than later.

Run as ``python -m benchmarks.headline yolov4.onnx PACK [--runs 20]``; exit 1 above 0.70 of ONNX Runtime's
delay, 1.5 of the fastest peer's, or 0.3 of the anonymous memory of the peer that takes the least.
"""

import argparse
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine.environment import copy_environment
from benchmarks.machine.sampling import SampledGroup, sampled_group
from benchmarks.turns import end, in_turns
from models.packs.pack import open_pack
from pipeline.benchmark.ours import StreamedArchitecture, ours_command
from pipeline.benchmark.run import relative_error
from pipeline.measuring.sweeps import random_inputs
from pipeline.peers import ONNXRUNTIME, OPENVINO, PEERS
from pipeline.peers.child import Tensors
from pipeline.peers.peer import PeerProcess, peer_command

OURS = "layerstream"
_MOST_OF_ONNXRUNTIME, _MOST_OF_FASTEST, _MOST_MEMORY, _MOST_ERROR = 0.70, 1.5, 0.3, 1e-5
_WARM_UP = 2
_KEYS = (
    "delay_ms",
    "anonymous_peak_bytes",
    "anonymous_held_bytes",
    "file_peak_bytes",
    "cgroup_peak_bytes",
)


@dataclass(frozen=True)
class Player:
    """A process that takes turns, and its memory."""

    peer: PeerProcess
    memory: SampledGroup


def _request_seconds(peer: PeerProcess) -> float:
    """Return the seconds of a request; none of its threads runs afterwards."""
    seconds = peer.run()
    peer.settle()
    return seconds


def _start(
    stack: ExitStack, name: str, options: argparse.Namespace, inputs: Tensors, folder: Path
) -> Player:
    """Start ``name`` with files of its own, so that it is charged with all that it reads."""
    own = folder / name
    environment = copy_environment(own / "environment", *(["openvino"] if name == OPENVINO else []))
    if name == OURS:
        model = options.pack
        command = ours_command(
            model, StreamedArchitecture("auto", options.weights), inputs, options.threads, own
        )
    else:
        model = Path(shutil.copy(options.onnx, own))
        command = peer_command(name, model, inputs, options.threads, own)
    environment.drop(model)
    memory = stack.enter_context(sampled_group(f"layerstream-headline-{name}"))
    peer = PeerProcess(name, memory.group.inside(environment.private(command)), own)
    stack.callback(peer.close)
    return Player(peer, memory)


def compare(rows: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return the fastest peer, the ratios of ours to each peer, and whether they are as promised."""
    peers = [name for name in rows if name != OURS]
    fastest = min(peers, key=lambda name: rows[name]["delay_ms"])
    ratios = {
        name: {f"{key}_ratio": rows[OURS][key] / rows[name][key] for key in _KEYS} for name in peers
    }
    met = ratios[fastest]["delay_ms_ratio"] <= _MOST_OF_FASTEST
    met &= ratios[ONNXRUNTIME]["delay_ms_ratio"] <= _MOST_OF_ONNXRUNTIME
    met &= all(ratios[name]["anonymous_peak_bytes_ratio"] <= _MOST_MEMORY for name in peers)
    return {"fastest_peer": fastest, "ratios": ratios, **ratios[fastest], "met": met}


def _measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    pack = open_pack(options.pack)
    inputs = random_inputs(pack.manifest)
    ports = [port.name for port in pack.manifest.outputs]
    names = [OURS, *PEERS] if importlib.util.find_spec("openvino") else [OURS, ONNXRUNTIME]
    with ExitStack() as stack:
        players = [_start(stack, name, options, inputs, folder) for name in names]
        requests = {each.peer.name: partial(_request_seconds, each.peer) for each in players}
        delays = in_turns(requests, options.runs, _WARM_UP)
        outputs = {player.peer.name: player.peer.outputs(ports) for player in players}
        rows = {
            player.peer.name: {
                "delay_ms": 1e3 * median(delays[player.peer.name]),
                **player.memory.figures(),
                "anonymous_held_bytes": player.memory.group.usage().anonymous,
            }
            for player in players
        }
    errors = {name: relative_error(outputs[OURS], outputs[name]) for name in names[1:]}
    result = {"model": pack.name, "weights_percent": options.weights, "runs": options.runs}
    return {**result, "rows": rows, **compare(rows), "max_relative_error": errors}


def main() -> None:
    """Measure all and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("onnx", type=Path)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--weights", type=float, default=5.0, help="percent of them in memory")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        result = _measure(options, Path(folder).resolve())
    # The pack was compiled from what ONNX Runtime has; OpenVINO computes some sums in another order.
    error = result["max_relative_error"][ONNXRUNTIME]
    end(result, result["met"] and error is not None and error <= _MOST_ERROR)


if __name__ == "__main__":
    main()
