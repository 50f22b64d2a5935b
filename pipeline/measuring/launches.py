"""What a request takes beside usual kernels: in the sweep, for each launch, and outside of the sweep.

Sweeps with as few launches as can be, and with one for each step; all weights are in memory. They take
turns, since a machine's speed changes, and one engine is open at a time.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from loader.pool.pool import ReadPool
from pipeline.devices.base import Device
from pipeline.execution.opened import opened
from pipeline.measuring.engines import Answered, Measured, answered_sweeps, measured_sweeps
from pipeline.measuring.sample_inputs import random_inputs
from pipeline.planning.joining.joined import apart, joined
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Plan
from pipeline.profiles.profile import Profile
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.timing.traced_durations import services

_MOST_ROUNDS = 5
_WARM_UP = 2
# Sweeps of a few milliseconds are many, long ones few.
_ROUND_SECONDS = 0.3
_LEAST_SWEEPS = 3

_Sweep = TypeVar("_Sweep", Answered, Measured)


@dataclass(frozen=True)
class Launches:
    """``seconds``: what a step takes less, usually, that is launched with the one before it; 0: none is.

    ``whole``: by how much a sweep takes longer than the usual times of its kernels: some always take more.
    ``outside``: seconds of requests, all but their sweeps.
    """

    seconds: float
    whole: float
    outside: list[float]


def measure_launches(
    program: Program, profile: Profile, device: Device, pool: ReadPool, rounds: int
) -> Launches:
    """Measure launches in the times of ``profile``, whose kernels were launched one by one.

    In up to ``rounds`` rounds of a few sweeps each.

    Raises:
        LoaderError: weights.bin cannot be read. DeviceError: a kernel cannot be loaded or fails.
    """
    plan = joined(program, make_plan(program, ARCHITECTURES["pre"]))
    single = apart(plan)
    inputs = random_inputs(program)
    fewer = len(plan.steps) - plan.launches
    parts: list[float] = []
    wholes: list[float] = []
    outside: list[float] = []
    for _ in range(min(rounds, _MOST_ROUNDS)):
        with opened(program, plan, device, pool) as engine:
            together = _some(answered_sweeps(engine, inputs))
        with opened(program, single, device, pool) as engine:
            alone = _some(measured_sweeps(engine, inputs))
        outside += (each.outside_seconds for each in together)
        delay = median(each.delay_seconds for each in alone)
        parts.append(median(each.delay_seconds for each in together) / delay)
        wholes.append(delay / _usual_kernels(single, alone))
    whole = max(median(wholes), 1.0)
    said = whole * sum(profile.durations(single).stages[-1])
    saved = max(1.0 - median(parts), 0.0) * said
    return Launches(saved / fewer if fewer else 0.0, whole, outside)


def _some(sweeps: Iterator[_Sweep]) -> list[_Sweep]:
    found: list[_Sweep] = []
    for _ in range(_WARM_UP):  # the first one touches all memory
        next(sweeps)
    end = time.perf_counter() + _ROUND_SECONDS
    while len(found) < _LEAST_SWEEPS or time.perf_counter() < end:
        found.append(next(sweeps))
    return found


def _usual_kernels(plan: Plan, sweeps: Sequence[Measured]) -> float:
    """Return the sum of what each kernel takes usually."""
    rows = [services(plan.stages, sweep.events, plan.choice.depth)[-1] for sweep in sweeps]
    kernels = (
        [each.seconds for each in row if each is not None] for row in zip(*rows, strict=True)
    )
    return float(sum(map(median, kernels)))
