"""Measuring the limits of one exact plan: what its delay bound is calculated from."""

from collections.abc import Callable

from pipeline.devices.base import Device
from pipeline.execution.opened import opened
from pipeline.measuring.engines import measured_sweeps
from pipeline.measuring.sample_inputs import random_inputs
from pipeline.planning.plan import Plan
from pipeline.profiles.delay_limits import SweepLimits
from pipeline.program.program import Program
from pipeline.timing.traced_durations import services

DEFAULT_RUNS = 200

#: Called with the steps done and all steps.
Progress = Callable[[int, int], None]


def measure_limits(
    program: Program,
    plan: Plan,
    device: Device,
    runs: int = DEFAULT_RUNS,
    progress: Progress = lambda done, total: None,
) -> SweepLimits:
    """Measure what the operations of ``plan`` do not exceed in ``runs`` sweeps, one after the other.

    Raises:
        LoaderError: weights.bin cannot be read. DeviceError: a kernel cannot be loaded or fails.
    """
    seen = []
    with opened(program, plan, device) as engine:
        sweeps = measured_sweeps(engine, random_inputs(program))
        next(sweeps)  # the first one touches all memory, and verifies
        for number in range(runs):
            sweep = next(sweeps)
            served = services(plan.stages, sweep.events, plan.choice.depth)
            seen.append((served, sweep.delay_seconds))
            progress(number + 1, runs)
    return SweepLimits.of(plan, seen)
