"""The delay bound against many sweeps: how many stayed within the profile's limits, and how near they came.

``python -m benchmarks.bound PACK [--measure 200] [--runs 1000]`` with a profile; exit 1 when a sweep within
the limits exceeds the bound, or the bound is above 1.25 times the longest of them.
"""

import argparse
import sys
from itertools import islice
from pathlib import Path

from loader.pool.pool import ReadPool
from models.packs.pack import open_pack
from models.runtime.sessions import claim_process
from pipeline.devices.cpu import CpuDevice
from pipeline.execution.opened import opened
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import Wanted
from pipeline.measuring.sweeps import measure_limits, measured_sweeps, random_inputs
from pipeline.profiles.delay_limits import BoundWatch
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile_file import load_profile, save_profile
from pipeline.program.prepare import prepare
from pipeline.schedule.architectures import ARCHITECTURES

_WANTED_RATIO = 1.25


def main() -> None:
    """Run the benchmark on the packs given."""
    claim_process()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pack", type=Path, metavar="PACK")
    parser.add_argument("--architecture", default="auto", choices=ARCHITECTURES)
    parser.add_argument("--weights", type=float, default=5.0, help="percent, for auto")
    parser.add_argument("--measure", type=int, default=200, help="sweeps that the limits are of")
    parser.add_argument("--runs", type=int, default=1000, help="sweeps that are judged")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    device = CpuDevice(arguments.threads)
    program = prepare(open_pack(arguments.pack), device)
    profile = load_profile(program.pack, this_machine(program.pack.weights_path, device))
    wanted = Wanted(weight_bytes=int(program.weight_bytes * arguments.weights / 100))
    architecture = ARCHITECTURES[arguments.architecture]
    plan = fit(program, architecture, wanted, profile).plan
    limits = measure_limits(program, plan, device, arguments.measure)
    save_profile(profile.with_limits(plan, limits), program.pack)
    watch = BoundWatch(plan, limits)
    inputs = random_inputs(program)
    pool = ReadPool()
    with opened(program, plan, device, pool) as engine:
        sweeps = measured_sweeps(engine, inputs)
        next(sweeps)  # the first one touches all memory, and verifies
        for sweep in islice(sweeps, arguments.runs):
            watch.see(sweep.events, sweep.delay_seconds)
    pool.close()
    sys.exit(_report(watch))


def _report(watch: BoundWatch) -> bool:
    """Print what came out; return whether it is not as wanted."""
    longest = watch.longest_within_seconds
    ratio = watch.bound_seconds / longest if longest else float("inf")
    print(
        f"bound {watch.bound_seconds * 1e3:.1f} ms; {watch.within} of {watch.sweeps} sweeps within the "
        f"limits, the longest {longest * 1e3:.1f} ms, ratio {ratio:.3f} (wanted <= {_WANTED_RATIO}); "
        f"{watch.violations} of them exceeded it (wanted 0), of all sweeps {watch.exceeded}"
    )
    return watch.violations > 0 or ratio > _WANTED_RATIO


if __name__ == "__main__":
    main()
