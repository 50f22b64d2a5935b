"""Every plan of an application, run: the papers' and ours, each in a process and a memory cgroup.

Naive, Algorithm 1's reuse, greedy-by-size, all layers by one row and Algorithm 2 as plans of our engine,
all weights in memory; then ours, and ours streaming, from the least memory on. Outputs are compared bit for
bit with those of the whole network, arenas and scratch with what was planned, the peak with plan and base.

Run as ``python -m benchmarks.planning.applications FILE.toml [--points 8] [--sweeps 5] [--turns 2]``
``[--json]``; its packs have profiles of this machine. MB are 10^6 bytes: weights, arena and scratch.
Exit 1 where outputs differ, an arena is larger than planned, or a peak exceeds plan and base by 10 %.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np

from benchmarks.children.application import CHOICES
from benchmarks.machine.sampling import sampled_group
from models.geometry.of_pack import PackCnn
from models.packs.pack import Pack
from models.runtime.sessions import claim_process
from pipeline.applications.evaluate import Chromosome, Evaluator
from pipeline.applications.ours import (
    Member,
    Together,
    preloaded_frontier,
    streaming_frontier,
    together,
)
from pipeline.applications.placements import PLACEMENTS
from pipeline.applications.rivals import by_one_row, of_chromosome, placed_plan
from pipeline.applications.search import Constraints, Settings, reduce_buffers
from pipeline.devices.cpu import CpuDevice
from pipeline.fitting.judge import judged
from pipeline.measuring.sample_inputs import random_inputs
from pipeline.planning.plan import Plan
from server.cli.applications.opened import OpenedApplication, open_application

_TOLERANCE = 1.10
_HEAD = f"{'way':<18}{'MB':>9}{'weights':>9}{'arena':>8}{'ms':>9}{'predicted':>10}{'peak':>8}"


@dataclass(frozen=True)
class Way:
    """One plan a model; ``placement``: of their activations, where the plan's own is not meant."""

    name: str
    plans: Together
    placement: str = ""


def ways(opened: OpenedApplication, members: Sequence[Member], points: int) -> Iterator[Way]:
    """Yield what is run, the whole network first."""
    application, manifests = opened.application, [member.manifest for member in members]
    for name in PLACEMENTS:
        plans = [placed_plan(manifest, name) for manifest in manifests]
        yield Way(name, _joined(opened, members, plans), name)
    yield Way("parts", _joined(opened, members, [by_one_row(each) for each in manifests]))
    evaluator = opened.evaluator()
    best, _ = reduce_buffers(evaluator, Constraints(), Settings(generations=20))
    yield Way("algorithm-2", _joined(opened, members, _reduced(opened, evaluator, best.genes)))
    for name, found in (
        ("ours", preloaded_frontier(application, members)),
        ("ours-streaming", streaming_frontier(application, members, points)),
    ):
        for item in _spread(found, points):
            yield Way(name, item)


def _spread(found: Sequence[Together], points: int) -> list[Together]:
    if len(found) <= points:
        return list(found)
    return [found[round(at * (len(found) - 1) / (points - 1))] for at in range(points)]


def _joined(
    opened: OpenedApplication, members: Sequence[Member], plans: Sequence[Plan]
) -> Together:
    fitted = [judged(plan, member.profile) for plan, member in zip(plans, members, strict=True)]
    return together(opened.application, members, fitted)


def _reduced(opened: OpenedApplication, evaluator: Evaluator, genes: Chromosome) -> list[Plan]:
    found = []
    for number, (pack, model) in enumerate(zip(opened.packs, opened.cnns, strict=True)):
        own = evaluator.gene_range(number)
        manifest = cast("Pack", pack).manifest
        found.append(of_chromosome(manifest, cast("PackCnn", model), genes[own.start : own.stop]))
    return found


def job(opened: OpenedApplication, way: Way, inputs: Sequence[Path], sweeps: int) -> dict[str, Any]:
    """Return what the child is told."""
    return {
        "sweeps": sweeps,
        "turns": [list(models) for models in way.plans.turns],
        "models": [
            {
                "pack": str(cast("Pack", pack).weights_path.parent),
                "architecture": plan.architecture.name,
                "choice": CHOICES.dump_python(plan.choice, mode="json"),
                "placement": way.placement,
                "inputs": str(path),
            }
            for pack, plan, path in zip(opened.packs, way.plans.plans, inputs, strict=True)
        ],
    }


def run(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run one plan in a group of its own; return its figures, and the most that it held."""
    (folder / "job.json").write_text(json.dumps(task), "utf-8")
    paths = [str(folder / "job.json"), str(folder / "result.json")]
    with sampled_group("applications") as group:
        command = [sys.executable, "-m", "benchmarks.children.application", *paths]
        process = group.group.start(command, subprocess.PIPE)
        _, errors = process.communicate()
        if process.returncode:
            raise SystemExit(errors)
        return {**json.loads(Path(paths[1]).read_text("utf-8")), **group.figures()}


def summary(way: Way, runs: Sequence[dict[str, Any]], expected: list[str]) -> dict[str, Any]:
    """Return what several runs of one plan come to."""
    plans = way.plans
    peak = min(item["anonymous_peak_bytes"] for item in runs)
    first = runs[0]
    arenas = all(
        allocated["arena"] <= planned["arena"] and allocated["scratch"] <= planned["scratch"]
        for allocated, planned in zip(first["allocated"], _planned(plans), strict=True)
    )
    return {
        "way": way.name,
        "memory_bytes": plans.memory_bytes,
        "total_bytes": plans.total_bytes,
        "weight_bytes": plans.bytes_of(("staging", "ring", "resident")),
        "arena_bytes": plans.bytes_of(("arena",)),
        "seconds": sum(
            median(item["seconds"][i] for item in runs) for i in range(len(plans.plans))
        ),
        "predicted_seconds": plans.seconds,
        "peak_bytes": peak,
        "base_bytes": first["base_bytes"],
        "equal": all(item["outputs"] == expected for item in runs),
        "within": arenas and peak <= _TOLERANCE * (plans.total_bytes + first["base_bytes"]),
    }


def _planned(plans: Together) -> list[dict[str, int]]:
    return [plan.memory for plan in plans.plans]


def row(figures: dict[str, Any]) -> str:
    """Return one line of the table."""
    sizes = [figures[key] / 1e6 for key in ("memory_bytes", "weight_bytes", "arena_bytes")]
    times = [1e3 * figures[key] for key in ("seconds", "predicted_seconds")]
    return (
        f"{figures['way']:<18}{sizes[0]:9.2f}{sizes[1]:9.2f}{sizes[2]:8.2f}{times[0]:9.2f}"
        f"{times[1]:10.2f}{figures['peak_bytes'] / 1e6:8.1f}  "
        + ("equal" if figures["equal"] else "DIFFER")
        + ("" if figures["within"] else ", MORE MEMORY THAN PLANNED")
    )


def main() -> None:
    """Run all plans in turns and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--points", type=int, default=8)
    parser.add_argument("--sweeps", type=int, default=5)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    claim_process()
    with ExitStack() as stack:
        device = CpuDevice()
        opened = open_application(options.file, device)
        members = opened.members(device)
        if members is None:
            raise SystemExit(f"{options.file}: only packs can be run")
        found = list(ways(opened, members, options.points))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        inputs = []
        for number, member in enumerate(members):
            inputs.append(folder / f"{number}.npz")
            np.savez(inputs[-1], **random_inputs(member.manifest))  # type: ignore[arg-type]
        runs: list[list[dict[str, Any]]] = [[] for _ in found]
        for _ in range(options.turns):
            for way, own in zip(found, runs, strict=True):
                own.append(run(job(opened, way, inputs, options.sweeps), folder))
    expected = runs[0][0]["outputs"]
    rows = [summary(way, own, expected) for way, own in zip(found, runs, strict=True)]
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print(_HEAD, *map(row, rows), sep="\n")
    sys.exit(0 if all(item["equal"] and item["within"] for item in rows) else 1)


if __name__ == "__main__":
    main()
