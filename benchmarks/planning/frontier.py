"""Every plan of a model's frontier, run: the same bits, the memory that was planned, the delay predicted.

Plans from the least memory to ``pre``, each in a process and a memory cgroup of its own. In turns, so
that a noisy moment does not hit one plan alone; delays are medians of all turns.

Run as ``python -m benchmarks.planning.frontier PACK [--points 12] [--sweeps 9] [--turns 2] [--json]``; the
pack has a profile of this machine. Exit 1 where outputs differ, an arena is larger than planned, or the
peak exceeds what was planned and the process had before by more than 10 %.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.machine.sampling import sampled_group
from models.packs.pack import open_pack
from models.runtime.sessions import claim_process
from pipeline.devices.cpu import CpuDevice
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import LEAST
from pipeline.measuring.sweeps import random_inputs
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile_file import load_profile
from pipeline.program.prepare import prepare
from pipeline.schedule.architectures import ARCHITECTURES

_TOLERANCE = 1.10
_HEAD = f"{'budget MB':>10}{'planned':>9}{'arena':>8}{'regions':>8}{'ms':>9}{'predicted':>10}{'peak':>8}"


def budgets(path: Path, points: int) -> list[int]:
    """Return totals in even proportions from the least plan to ``pre``."""
    device = CpuDevice()
    program = prepare(open_pack(path), device)
    profile = load_profile(program.pack, this_machine(program.pack.weights_path, device))
    auto, pre = device.adapt(ARCHITECTURES["auto"]), ARCHITECTURES["pre"]
    least = fit(program, auto, LEAST, profile).plan.total_bytes
    most = fit(program, pre).plan.total_bytes
    ratio = (most / least) ** (1 / (points - 1))
    return [round(least * ratio**point) + 1 for point in range(points)]


def run(path: Path, limit: str, inputs: Path, sweeps: int, result: Path) -> dict[str, Any]:
    """Run one plan in a group of its own; return its figures, and the most that it held."""
    command = [sys.executable, "-m", "benchmarks.children.planned"]
    arguments = [str(path), limit, str(inputs), str(sweeps), str(result)]
    with sampled_group("frontier") as group:
        process = group.group.start([*command, *arguments], subprocess.PIPE)
        _, errors = process.communicate()
        if process.returncode:
            raise SystemExit(f"{limit}: {errors}")
        return {**json.loads(result.read_text("utf-8")), **group.figures()}


def summary(limit: str, runs: Sequence[dict[str, Any]], expected: str) -> dict[str, Any]:
    """Return the figures of several runs of one plan."""
    first = runs[0]
    planned = sum(first["planned"].values())
    peak = min(run["anonymous_peak_bytes"] for run in runs)
    return {
        "budget": limit,
        "planned_bytes": planned,
        "arena_bytes": first["planned"]["arena"],
        "regions": first["regions"],
        "read_bytes": first["read_bytes"],
        "seconds": median(run["seconds"] for run in runs),
        "predicted_seconds": first["predicted_seconds"],
        "peak_bytes": peak,
        "base_bytes": first["base_bytes"],
        "equal": all(run["outputs"] == expected for run in runs),
        "within": first["allocated"]["arena"] <= first["planned"]["arena"]
        and peak <= _TOLERANCE * (planned + first["base_bytes"]),
    }


def row(figures: dict[str, Any]) -> str:
    """Return one line of the table; memory in MB."""
    limit = figures["budget"]
    shown = limit if limit == "pre" else f"{int(limit) / 1e6:.1f}"
    sizes = [figures[key] / 1e6 for key in ("planned_bytes", "arena_bytes")]
    times = [1e3 * figures[key] for key in ("seconds", "predicted_seconds")]
    verdict = "equal" if figures["equal"] else "DIFFER"
    return (
        f"{shown:>10}{sizes[0]:9.1f}{sizes[1]:8.2f}{figures['regions']:8d}{times[0]:9.2f}"
        f"{times[1]:10.2f}{figures['peak_bytes'] / 1e6:8.1f}  {verdict}"
        + ("" if figures["within"] else ", MORE MEMORY THAN PLANNED")
    )


def main() -> None:
    """Run all plans and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--points", type=int, default=12)
    parser.add_argument("--sweeps", type=int, default=9)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    claim_process()
    limits = ["pre", *map(str, budgets(options.pack, options.points))]
    runs: dict[str, list[dict[str, Any]]] = {limit: [] for limit in limits}
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, **random_inputs(open_pack(options.pack).manifest))  # type: ignore[arg-type]
        for _ in range(options.turns):
            for limit in limits:
                result = Path(folder) / "result.json"
                runs[limit].append(run(options.pack, limit, inputs, options.sweeps, result))
    expected = runs["pre"][0]["outputs"]
    rows = [summary(limit, runs[limit], expected) for limit in limits]
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print(_HEAD, *map(row, rows), sep="\n")
    sys.exit(0 if all(item["equal"] and item["within"] for item in rows) else 1)


if __name__ == "__main__":
    main()
