"""Every plan of an application, run: the papers' and ours, each in a process and a memory cgroup.

Naive, Algorithm 1's reuse, greedy-by-size, all layers by one row and Algorithm 2 as plans of our engine,
all weights in memory; then ours, and ours streaming, from the least memory on. Outputs are compared bit for
bit with those of the whole network, arenas and scratch with what was planned, the peak with plan and base.

Where the file has partitions that run at once, they do, each on a core of its own; papers' plans as well.
Then ms are the time from one frame to the next in a stream of them, and the first row is the whole network
on one core.

Run as ``python -m benchmarks.planning.applications FILE.toml|PACK [--ways ours,ours-streaming] [--points 8]
[--sweeps 5] [--turns 2] [--json]``; packs have profiles of this machine. MB are 10^6 bytes: weights, arena
and scratch, as both papers count.
Exit 1 where outputs differ, an arena is larger than planned, or a peak exceeds plan and base by 10 %.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np

from benchmarks.children.application import CHOICES
from benchmarks.machine.sampling import run_sampled
from benchmarks.planning.rivals import (
    by_one_row,
    of_chromosome,
    of_parts,
    placed_plan,
    whole,
)
from benchmarks.turns import end
from cli.applications import OpenedApplication, OpenedPack, open_application
from models.processes import python_command
from models.runtime.sessions import claim_process
from papers.applications.application import Application
from papers.applications.ours.frontiers import planned, preloaded_frontier, streaming_frontier
from papers.applications.ours.members import ApplicationMember, Together, together
from papers.applications.placements import PLACEMENTS
from papers.applications.reduction import Constraints, GeneticSettings, reduce_buffers
from pipeline.devices.cpu import CpuDevice
from pipeline.measuring.sweeps import random_inputs
from pipeline.planning.plan import Plan
from pipeline.program.program import Program

#: The network whole, on one core, beside its partitions on several.
_ONE = "one-partition"
WAYS = (*PLACEMENTS, "parts", "algorithm-2", "ours", "ours-streaming")
_TOLERANCE = 1.10
_HEAD = f"{'way':<18}{'MB':>9}{'weights':>9}{'arena':>8}{'ms':>9}{'predicted':>10}{'peak':>8}"


@dataclass(frozen=True)
class PlannedWay:
    """A plan of each of ``members``; ``placement``: of activations, where it is not the plan's own."""

    name: str
    members: tuple[ApplicationMember, ...]
    plans: Together
    placement: str = ""


def ways(
    opened: OpenedApplication,
    members: Sequence[ApplicationMember],
    points: int,
    wanted: Sequence[str],
) -> Iterator[PlannedWay]:
    """Yield what is run of the ways ``wanted``, the whole network first in any case.

    Where partitions run at once it runs on one core, too.
    """
    application, own = opened.application, tuple(members)
    if any(member.cuts for member in own):
        uncut = tuple(replace(member, cuts=()) for member in own)
        yield PlannedWay(_ONE, uncut, _rivals(application, uncut, whole))
    first = next(iter(PLACEMENTS))
    for name in WAYS:
        if name in wanted or name == first:
            placement = name if name in PLACEMENTS else ""
            for item in _spread(_planned_by(name, opened, own, points), points):
                yield PlannedWay(name, own, item, placement)


def _planned_by(
    name: str, opened: OpenedApplication, members: Sequence[ApplicationMember], points: int
) -> list[Together]:
    """Return the plans of a way, from the least memory on."""
    application = opened.application
    match name:
        case "parts":
            return [_rivals(application, members, by_one_row)]
        case "algorithm-2":
            return [_reduced(opened, members)]
        case "ours":
            return preloaded_frontier(application, members)
        case "ours-streaming":
            return streaming_frontier(application, members, points)
    return [_rivals(application, members, partial(placed_plan, way=name))]


def _spread(found: Sequence[Together], points: int) -> list[Together]:
    if len(found) <= points:
        return list(found)
    return [found[round(at * (len(found) - 1) / (points - 1))] for at in range(points)]


def _rivals(
    application: Application,
    members: Sequence[ApplicationMember],
    plan_of: Callable[[Program], Plan],
) -> Together:
    plans = [of_parts(member.program, member.cuts, plan_of) for member in members]
    return together(application, list(map(planned, members, plans)))


def _reduced(opened: OpenedApplication, members: Sequence[ApplicationMember]) -> Together:
    """Return the plans of Algorithm 2's least memory."""
    application, evaluator = opened.application, opened.evaluator()
    best, _ = reduce_buffers(evaluator, Constraints(), GeneticSettings(generations=20))
    plans = []
    for number, (item, member) in enumerate(zip(opened.packs, members, strict=True)):
        assert item is not None
        own = evaluator.gene_range(number)
        genes = best.genes[own.start : own.stop]
        layers = [application.partitions[at].layers for at in application.of_cnn(number)]
        plans.append(of_chromosome(member.program, item.model, genes, layers, member.cuts))
    return together(application, list(map(planned, members, plans)))


def job(
    opened: OpenedApplication, way: PlannedWay, inputs: Sequence[Path], sweeps: int
) -> dict[str, Any]:
    """Return the arguments of the child."""
    found = zip(opened.packs, way.members, way.plans.plans, inputs, strict=True)
    return {
        "sweeps": sweeps,
        "one_core": any(opened.cuts),
        "turns": [list(models) for models in way.plans.turns],
        "models": [
            {
                "pack": str(cast("OpenedPack", item).program.pack.folder),
                "architecture": plan.architecture.name,
                "cuts": list(member.cuts),
                "choices": [
                    CHOICES.dump_python(each.choice, mode="json") for each in plan.partitions
                ],
                "placement": way.placement,
                "inputs": str(path),
            }
            for item, member, plan, path in found
        ],
    }


def run(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run one plan in a group of its own; return its figures, and the most that it held."""
    (folder / "job.json").write_text(json.dumps(task), "utf-8")
    paths = [str(folder / "job.json"), str(folder / "result.json")]
    command = python_command("benchmarks.children.application", *paths)
    done = run_sampled("applications", command)
    if done.status:
        raise SystemExit(done.message)
    return {**json.loads(Path(paths[1]).read_text("utf-8")), **done.figures}


def summary(way: PlannedWay, runs: Sequence[dict[str, Any]], expected: list[str]) -> dict[str, Any]:
    """Return the figures of several runs of one plan."""
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
        "partitions": [len(plan.partitions) for plan in plans.plans],
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


def _application(path: Path, folder: Path) -> Path:
    """Return the file of an application; of a pack one is written to ``folder``."""
    if not path.is_dir():
        return path
    file = folder / "application.toml"
    pack = json.dumps(str(path.resolve()))
    file.write_text(f'name = "alone"\n[[model]]\nname = "alone"\npack = {pack}\n', "utf-8")
    return file


def main() -> None:
    """Run all plans in turns and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="an application, or a pack alone")
    parser.add_argument("--ways", default=",".join(WAYS), help="only these")
    parser.add_argument("--points", type=int, default=8)
    parser.add_argument("--sweeps", type=int, default=5)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if unknown := {*options.ways.split(",")} - {*WAYS}:
        parser.error(f"--ways: {min(unknown)!r}; there are {', '.join(WAYS)}")
    claim_process()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        opened, device = open_application(_application(options.file, folder), CpuDevice)
        members = opened.members(device)
        if members is None:
            raise SystemExit(f"{options.file}: only packs can be run")
        tried_ways = list(ways(opened, members, options.points, options.ways.split(",")))
        inputs = []
        for number, member in enumerate(members):
            inputs.append(folder / f"{number}.npz")
            np.savez(inputs[-1], **random_inputs(member.program))  # type: ignore[arg-type]
        runs: list[list[dict[str, Any]]] = [[] for _ in tried_ways]
        for _ in range(options.turns):
            for way, own in zip(tried_ways, runs, strict=True):
                own.append(run(job(opened, way, inputs, options.sweeps), folder))
    expected = runs[0][0]["outputs"]
    rows = [summary(way, own, expected) for way, own in zip(tried_ways, runs, strict=True)]
    held = all(item["equal"] and item["within"] for item in rows)
    end(rows, held, None if options.json else [_HEAD, *map(row, rows)])


if __name__ == "__main__":
    main()
