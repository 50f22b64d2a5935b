"""Profiles made of numbers alone, for programs made of numbers alone."""

from collections.abc import Sequence
from dataclasses import replace

from pipeline.fitting.predicting import Predictions
from pipeline.measuring.races import RacedPlan, Runner, measured_plan
from pipeline.planning.joined_launches import joined
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Plan
from pipeline.profiles.delay_limits import MOST_SECONDS, SweepLimits
from pipeline.profiles.machine import Machine
from pipeline.profiles.profile import MeasuredPlan, Profile
from pipeline.profiles.times import CopyTime, Distribution, ReadTime
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.timing.durations import services
from pipeline.timing.timeline import trace

MACHINE = Machine(
    cpu="a processor",
    cores=2,
    threads=2,
    isa="x86_64-avx2",
    onnxruntime="1.0",
    kernel="Linux 6",
    device="/dev/disk",
    file_system="ext4",
    reader="direct",
    reader_priority="nice",
    huge_pages=True,
)


def always(seconds: float) -> Distribution:
    """Return a time that never differs."""
    return Distribution(count=1, median=seconds, p95=seconds, max=seconds)


def profile(
    program: Program,
    kernel_seconds: float | Sequence[float] = 1e-3,
    bytes_a_second: float = 1e9,
) -> Profile:
    """Return a profile in which every kernel takes as long, and bytes move at one speed.

    ``kernel_seconds``: of all of the finest pieces, or of each. With all memory a sweep takes as long as
    is estimated.
    """
    sizes = (64 << 10, 128 << 10, 8 << 20)
    pieces = (
        (kernel_seconds,) * len(program.pieces)
        if isinstance(kernel_seconds, float)
        else tuple(kernel_seconds)
    )
    made = Profile(
        manifest="0" * 16,
        machine=MACHINE,
        date="2026-01-01T00:00:00+00:00",
        reads=tuple(
            ReadTime(n_bytes=n_bytes, depth=depth, seconds=always(depth * n_bytes / bytes_a_second))
            for n_bytes in sizes
            for depth in (1, 2, 4)
        ),
        copies=tuple(
            CopyTime(n_bytes=n_bytes, seconds=always(n_bytes / bytes_a_second)) for n_bytes in sizes
        ),
        pieces=pieces,
        resident=always(1.0),
        outside=always(0.0),
    )
    pre = joined(program, make_plan(program, ARCHITECTURES["pre"]))
    usual = Predictions(program, made).estimates.seconds(pre)
    return replace(made, resident=always(min(usual, MOST_SECONDS)))


def measured(plan: Plan, ratio: float, rounds: int = 3) -> MeasuredPlan:
    """Return ``plan`` as if it had taken ``ratio`` times as long as ``pre`` in so many turns."""
    return measured_plan(Runner(RacedPlan.of(plan), lambda: 0.0, [ratio] * rounds))


def limits(program: Program, plan: Plan, profile: Profile) -> SweepLimits:
    """Return limits of ``plan`` as if sweeps had taken what is estimated."""
    line = Predictions(program, profile).estimates.sweep(plan)
    events = list(trace(plan.stages, line, plan.stages[0].ahead))
    served = services(plan.stages, events, plan.choice.depth)
    return SweepLimits.of(plan, [(served, line.delay_seconds)])
