"""What each kind of step takes beside its prediction: pieces that run whole, phases of regions, reads.

Plans of the frontiers, all weights in memory and streaming, take turns sweep by sweep, on a profile
that is measured first. Medians in ms; ``ratio`` is predicted / measured.

``--cpu``: all times are CPU times of the thread that computes, which it has for itself (--threads 1). They
are what a quiet core would take, also while others compute; of reads they say nothing, so nothing streams.

Run as ``python -m benchmarks.planning.predicted_steps PACK [--points 5] [--sweeps 7] [--threads N] [--cpu]
[--json]``. The profile is not saved.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.planning.rivals import by_one_row, whole
from loader.pool.pool import ReadPool
from models.packs.pack import open_pack
from models.runtime.sessions import claim_process
from papers.applications.ours.frontiers import preloaded, streamed
from papers.applications.ours.members import ApplicationMember
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.opened import opened
from pipeline.measuring.profiling import profile_pack
from pipeline.measuring.sweeps import Measured, measured_sweeps, random_inputs
from pipeline.planning.plan import Plan
from pipeline.profiles.profile import Profile
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.program.steps import Phase
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.timing.durations import services
from pipeline.timing.timeline import timeline

KINDS = ("pieces", "phases", "reads")


def plans(member: ApplicationMember, points: int, streaming: bool) -> list[tuple[str, Plan]]:
    """Return what is run: whole tensors, all by one row, and points of our frontiers."""
    found = [("whole", whole(member.program)), ("parts", by_one_row(member.program))]
    found += [("ours", item.plan) for item in _spread(preloaded(member), points)]
    if streaming:
        found += [("streaming", item.plan) for item in _spread(streamed(member, points), points)]
    return found


def _spread(items: Sequence[Any], points: int) -> list[Any]:
    if len(items) <= points:
        return list(items)
    return [items[round(at * (len(items) - 1) / (points - 1))] for at in range(points)]


def measured(
    program: Program, device: CpuDevice, found: Sequence[tuple[str, Plan]], sweeps: int
) -> list[dict[str, list[float]]]:
    """Return for each plan its delays, and the seconds of each kind of step, of some sweeps."""
    rows: list[dict[str, list[float]]] = [defaultdict(list) for _ in found]
    with ExitStack() as stack:
        pool = stack.enter_context(closing(ReadPool()))
        engines = [stack.enter_context(opened(program, plan, device, pool)) for _, plan in found]
        runs = [measured_sweeps(engine, random_inputs(program)) for engine in engines]
        for turn in range(1 + sweeps):  # the first one touches all memory, and verifies
            for (_, plan), own, row in zip(found, runs, rows, strict=True):
                sweep = next(own)
                for kind, seconds in _by_kind(plan, sweep) if turn else ():
                    row[kind].append(seconds)
    return rows


def _by_kind(plan: Plan, sweep: Measured) -> list[tuple[str, float]]:
    *moves, kernels = services(plan.stages, sweep.events, plan.choice.depth)
    seconds = [0.0 if item is None else item.seconds for item in kernels]
    reads = sum(item.seconds for item in moves[0] if item is not None) if moves else 0.0
    return [("delay", sweep.delay_seconds), *_kinds(plan, seconds, reads).items()]


def _kinds(plan: Plan, seconds: Sequence[float], reads: float) -> dict[str, float]:
    sums = dict.fromkeys(KINDS, 0.0)
    for step, each in zip(plan.steps, seconds, strict=True):
        sums["phases" if isinstance(step, Phase) else "pieces"] += each
    return sums | {"reads": reads}


def said(plan: Plan, profile: Profile) -> dict[str, float]:
    """Return what ``profile`` says of a sweep, and of each kind of step."""
    durations = profile.durations(plan)
    sweep = timeline(plan.stages, durations, plan.stages[0].ahead)
    reads = sum(durations.stages[0]) if len(durations.stages) > 1 else 0.0
    return {"delay": sweep.delay_seconds, **_kinds(plan, durations.stages[-1], reads)}


def summary(
    name: str, plan: Plan, row: dict[str, list[float]], predicted: dict[str, float]
) -> dict[str, Any]:
    """Return the figures of one plan."""
    took = {kind: median(row[kind]) for kind in ("delay", *KINDS)}
    n_bytes = plan.weight_bytes + plan.arena_bytes + plan.scratch_bytes
    ratios = {kind: predicted[kind] / took[kind] for kind in took if took[kind] > 0}
    return {"way": name, "memory_bytes": n_bytes, "took": took, "said": predicted, "ratio": ratios}


def _line(figures: dict[str, Any]) -> str:
    cells = [f"{figures['way']:<10}{figures['memory_bytes'] / 1e6:8.2f}"]
    for kind in ("delay", *KINDS):
        said_ms, took_ms = 1e3 * figures["said"][kind], 1e3 * figures["took"][kind]
        ratio = figures["ratio"].get(kind)
        shown = "-" if ratio is None else f"{ratio:.2f}"
        cells.append(f"{said_ms:9.2f}{took_ms:9.2f}{shown:>6}")
    return "".join(cells)


def main() -> None:
    """Profile, run all plans in turns, print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--points", type=int, default=5)
    parser.add_argument("--sweeps", type=int, default=7)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    claim_process()
    if options.cpu:
        time.perf_counter = time.thread_time  # of all that is measured here
    device = CpuDevice(1 if options.cpu else options.threads)
    pack = open_pack(options.pack)
    profile = profile_pack(pack, device)
    device.tune(profile.tuning)
    program = prepare(pack, device)
    member = ApplicationMember(program, profile, device.adapt(ARCHITECTURES["auto"]))
    named_plans = plans(member, options.points, streaming=not options.cpu)
    rows = measured(program, device, named_plans, options.sweeps)
    figures = [
        summary(name, plan, row, said(plan, profile))
        for (name, plan), row in zip(named_plans, rows, strict=True)
    ]
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    heads = "".join(f"{kind + ' said':>15}{'took':>9}" for kind in ("delay", *KINDS))
    print(f"{'':10}{'MB':>8}{heads}", *map(_line, figures), sep="\n")
    print(f"a phase takes {profile.phases:.2f} of its operators one by one")


if __name__ == "__main__":
    main()
