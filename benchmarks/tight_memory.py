"""A network whose weights do not fit answers inside a memory cgroup, all told; other servers beside it.

The same requests go to Layerstream, to FastAPI with ONNX Runtime holding the weights, to the same with ONNX
Runtime mapping them from the pack's file, and where it is installed to OpenVINO: each a fresh process in
a cgroup with the limit, libraries and model read from the disk. All take turns, ``--repeats`` times.

Run as ``python -m benchmarks.tight_memory [--network resnet152] [--limits 200MB,150MB,120MB] [--json]``;
exit 1 unless Layerstream answered everything, and the first peer nowhere, where weights exceed the limit.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.machine.environment import Environment, copy_environment
from benchmarks.servers.attempt import Attempt, ContenderTask, attempt
from benchmarks.servers.contenders import OURS, RESIDENT, TITLES, ServerContender, contenders
from benchmarks.turns import end, rotated
from models import zoo
from models.compiler import compile_onnx
from models.packs.pack import open_pack
from models.sizes import parse_size
from pipeline.peers.cgroup import memory_group

_PEAKS = (
    "anonymous_peak_bytes",
    "file_peak_bytes",
    "cgroup_peak_bytes",
    "sampled_total_peak_bytes",
)
_HEAD = (
    f"{'':26}{'limit':>6}{'s/request':>11}{'per s':>7}{'anonymous':>11}{'files':>7}{'total MB':>10}"
)

#: (contender, limit) -> what came of it each time.
Attempts = Mapping[tuple[str, int | None], Sequence[Attempt]]


def take_turns(
    found: Mapping[str, ServerContender],
    limits: Sequence[int | None],
    environment: Environment,
    task: ContenderTask,
    repeats: int,
) -> dict[tuple[str, int | None], list[Attempt]]:
    """Let each try each limit ``repeats`` times, in turns; the first changes from turn to turn."""
    done: dict[tuple[str, int | None], list[Attempt]] = {}
    for turn in range(repeats):
        for limit in limits:
            for contender in rotated([*found.values()], turn):
                tried = attempt(contender, environment, task, memory_group, limit)
                done.setdefault((contender.name, limit), []).append(tried)
    return done


def summary(tried: Sequence[Attempt]) -> dict[str, Any]:
    """Return the attempts of one contender at one limit: medians, of each answer but first ones."""
    warm = [seconds for each in tried for seconds in each.warm_seconds()]
    firsts = [each.seconds[0] for each in tried if each.seconds]
    return {
        "attempts": len(tried),
        "answered": sum(len(each.answers) for each in tried),
        "failures": [each.failure for each in tried if each.failure],
        "oom_kills": sum(each.figures["oom_kills"] for each in tried),
        "first_seconds": median(firsts) if firsts else None,
        "seconds": median(warm) if warm else None,
        "requests_per_second": len(warm) / sum(warm) if warm else None,
        **{key: int(median(each.figures[key] for each in tried)) for key in _PEAKS},
        "left_in_page_cache_bytes": max(each.cached_bytes for each in tried),
    }


def largest_difference(attempts: Attempts) -> float:
    """Return the largest difference of two answers to the same request, of all that answered it."""
    answers = [each.answers for tried in attempts.values() for each in tried]
    most = max(answers, key=len)
    pairs = (pair for each in answers for pair in zip(each, most, strict=False))
    return max((float(np.abs(one - other).max()) for one, other in pairs), default=0.0)


def row(name: str, limit: int | None, figures: Mapping[str, Any]) -> str:
    """Return one line of the table; sizes in MB (a million bytes)."""
    at = f"{limit / 1e6:.0f}" if limit else "none"
    if figures["failures"]:
        short = figures["failures"][0]
        how = short if len(short) < 12 else "failed"
        speed = f"{how} {len(figures['failures'])} of {figures['attempts']}"
    else:
        speed = f"{figures['seconds']:11.3f}{figures['requests_per_second']:7.2f}"
    anonymous, files, total = (figures[key] / 1e6 for key in _PEAKS[:3])
    return f"{TITLES[name]:26}{at:>6}{speed:>18}{anonymous:11.0f}{files:7.0f}{total:10.0f}"


def holds(attempts: Attempts, weights: int, requests: int) -> bool:
    """Return whether ours answered everything, and the resident peer nowhere, where it cannot fit."""
    for (name, limit), tried in attempts.items():
        if name == OURS and any(len(each.answers) < requests for each in tried):
            return False
        if (
            name == RESIDENT
            and limit
            and limit < weights
            and not all(each.failure for each in tried)
        ):
            return False
    return True


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="resnet152")
    parser.add_argument("--resolution", type=int)
    parser.add_argument("--limits", "--limit", default="200MB,150MB,120MB", help="or none")
    parser.add_argument("--budget", default="24MiB")
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--contenders", default=",".join(TITLES))
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _measure(folder: Path, options: argparse.Namespace) -> tuple[Attempts, int]:
    source = folder / f"{options.network}.onnx"
    zoo.build(options.network, source, resolution=options.resolution)
    pack = open_pack(compile_onnx(source, folder / "repository" / options.network))
    everybody = contenders(source, folder / "repository", options.budget)
    chosen = {
        name: found for name, found in everybody.items() if name in options.contenders.split(",")
    }
    environment = copy_environment(folder / "environment", "openvino")
    (port,) = pack.manifest.inputs
    generator = np.random.default_rng(0)
    requests = [generator.standard_normal(port.shape, np.float32) for _ in range(options.requests)]
    limits = [None if text == "none" else parse_size(text) for text in options.limits.split(",")]
    task = ContenderTask(options.network, port.name, requests)
    attempts = take_turns(chosen, limits, environment, task, options.repeats)
    return attempts, pack.manifest.weight_bytes


def main() -> None:
    """Run all and print a table or JSON."""
    options = _options()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        attempts, weights = _measure(Path(folder).resolve(), options)
    rows = {key: summary(tried) for key, tried in attempts.items()}
    difference = largest_difference(attempts)
    result = {
        "network": options.network,
        "weight_bytes": weights,
        "requests": options.requests,
        "repeats": options.repeats,
        "largest_difference": difference,
        "rows": [{"name": name, "limit_bytes": limit, **rows[name, limit]} for name, limit in rows],
    }
    lines = [
        f"{options.network}: {weights / 1e6:.0f} MB of weights; {options.requests} requests, "
        f"{options.repeats} times; largest difference of answers {difference:.1e}",
        _HEAD,
        *(row(*key, figures) for key, figures in rows.items()),
        *sorted({each.caveat for tried in attempts.values() for each in tried} - {""}),
    ]
    held = holds(attempts, weights, options.requests)
    end(result, held, None if options.json else lines)


if __name__ == "__main__":
    main()
