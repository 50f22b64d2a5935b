"""How much longer a network computes with half of the memory of its activations, weights all in memory.

Whole tensors, and the fastest plan on rows whose arena and scratch take at most ``--share`` of theirs, take
turns in blocks of sweeps; delays are medians. No weight is read, so all that differs is rows.

Run as ``python -m benchmarks.planning.activations PACK... [--share 0.5] [--blocks 8] [--json]``; packs have
profiles of this machine. Exit 1 where outputs differ or no plan takes so little.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from benchmarks.children.planned import checksums
from loader.pool.pool import ReadPool
from models.packs.pack import open_pack
from models.runtime.sessions import claim_process
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.opened import opened
from pipeline.fitting.row_variants import row_variants
from pipeline.measuring.sweeps import random_inputs
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile import Profile
from pipeline.profiles.profile_file import load_profile
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.program.region_plan import Region
from pipeline.schedule.architectures import ARCHITECTURES

_SWEEPS = 10
_WHOLE = 1 << 62
_HEAD = f"{'pack':>24}{'whole MB':>10}{'rows MB':>9}{'share':>7}{'whole ms':>10}{'rows ms':>9}{'ratio':>7}"


def main() -> None:
    """Measure each pack; print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packs", type=Path, nargs="+")
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    claim_process()
    if not options.json:
        print(_HEAD)
    rows = []
    for path in options.packs:
        rows.append(measure(path, options.share, options.blocks))
        if not options.json:
            print(_row(rows[-1]), flush=True)
    if options.json:
        print(json.dumps(rows, indent=2))
    sys.exit(0 if all(row.get("equal") for row in rows) else 1)


def measure(path: Path, share: float, blocks: int) -> dict[str, Any]:
    """Return the figures of one pack; without those of rows where no plan takes so little."""
    device = CpuDevice()
    program = prepare(open_pack(path), device)
    profile = load_profile(program.pack, this_machine(program.pack.weights_path, device))
    whole = _resident(program)
    halved = _fastest(program, profile, share * _activations(whole))
    figures: dict[str, Any] = {"pack": program.name, "whole_bytes": _activations(whole)}
    if halved is None:
        return figures
    inputs = random_inputs(program)
    seconds: list[list[float]] = [[], []]
    answers: list[str] = []
    with ExitStack() as stack:
        pool = stack.enter_context(closing(ReadPool()))
        engines = [
            stack.enter_context(opened(program, plan, device, pool)) for plan in (whole, halved)
        ]
        for _ in range(blocks):
            for engine, delays in zip(engines, seconds, strict=True):
                answers.append(
                    engine.answer(inputs, checksums)[0]
                )  # brings its memory to the caches
                runs = (engine.answer(inputs, checksums)[1] for _ in range(_SWEEPS))
                delays.extend(run.delay_seconds for run in runs)
    medians = [statistics.median(delays) for delays in seconds]
    regions = [(each.first_piece, each.end_piece, each.cut.rows) for each in halved.choice.regions]
    return figures | {
        "rows_bytes": _activations(halved),
        "whole_seconds": medians[0],
        "rows_seconds": medians[1],
        "regions": regions,
        "equal": len(set(answers)) == 1,
    }


def _fastest(program: Program, profile: Profile, most_bytes: float) -> Plan | None:
    """Return the plan on rows that is predicted to compute fastest within so many bytes."""
    plans = [plan for plan in _on_rows(program, profile) if _activations(plan) <= most_bytes]
    return min(plans, key=lambda plan: sum(profile.durations(plan).stages[-1]), default=None)


def _on_rows(program: Program, profile: Profile) -> Iterator[Plan]:
    for variant in row_variants(program, ARCHITECTURES["auto"], profile).found:
        if variant.regions:
            yield _resident(program, variant.regions)


def _resident(program: Program, regions: tuple[Region, ...] = ()) -> Plan:
    streamed = tuple(i for i, span in enumerate(program.spans) if not span.resident)
    choice = Choice(chunk_bytes=_WHOLE, resident=streamed, regions=regions)
    return make_plan(program, ARCHITECTURES["auto"], choice=choice)


def _activations(plan: Plan) -> int:
    return plan.memory["arena"] + plan.memory["scratch"]


def _row(figures: dict[str, Any]) -> str:
    name, whole = figures["pack"][-24:], figures["whole_bytes"]
    if "rows_bytes" not in figures:
        return f"{name:>24}{whole / 1e6:10.2f}  no plan takes so little"
    sizes = (
        f"{whole / 1e6:10.2f}{figures['rows_bytes'] / 1e6:9.2f}{figures['rows_bytes'] / whole:7.2f}"
    )
    times = [1e3 * figures["whole_seconds"], 1e3 * figures["rows_seconds"]]
    verdict = "equal" if figures["equal"] else "DIFFER"
    ratio = times[1] / times[0]
    return f"{name:>24}{sizes}{times[0]:10.2f}{times[1]:9.2f}{ratio:7.2f}  {verdict}"


if __name__ == "__main__":
    main()
