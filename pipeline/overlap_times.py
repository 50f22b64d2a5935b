"""How much reads, copies and kernels slow each other down in the architectures of seed 003, measured.

Times of reads on a quiet machine, of copies, of kernels with all weights in memory: none of them knows
what happens when all three run at once and wait for each other's threads. A few sweeps of each order do,
each beside one of the same kernels alone: a machine's speed changes from minute to minute.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from statistics import median

from loader.pool import ReadPool
from models.pack import Pack
from pipeline.architectures import ARCHITECTURES
from pipeline.devices.cpu import CpuDevice
from pipeline.inputs import random_inputs
from pipeline.observed import services
from pipeline.planning.make import chunk_limit, make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.profile import Overlap, Profile
from pipeline.sweeps import measured_sweeps, opened

#: One of each order of operations that sweeps can have.
ORDERS = ("seq", "sync", "async", "2s")


def measure_overlap(
    pack: Pack, name: str, profile: Profile, device: CpuDevice, pool: ReadPool, sweeps: int
) -> Overlap:
    """Return how long operations take in ``sweeps`` of architecture ``name``, over their times alone."""
    manifest, order = pack.manifest, ARCHITECTURES[name]
    plan = make_plan(manifest, order)
    choice = Choice(chunk_bytes=chunk_limit(manifest, order, plan.choice))
    quiet = make_plan(manifest, ARCHITECTURES["pre"], choice=choice)
    *moves, kernels = [sum(row) for row in profile.durations(plan).stages]
    ratios: list[list[float]] = [[] for _ in plan.stages]
    with (
        _sweeping(pack, quiet, device, pool) as alone,
        _sweeping(pack, plan, device, pool) as beside,
    ):
        for (*_, now), took in islice(zip(alone, beside, strict=False), sweeps):
            for row, seconds, expected in zip(ratios, took, [*moves, now], strict=True):
                row.append(seconds / expected if expected else 1.0)
    read, *copies, kernel = map(median, ratios)
    return Overlap(
        read=read,
        copying=copies[0] if copies else 1.0,
        disturbance=max(kernel - 1.0, 0.0) * kernels / max(len(plan.groups), 1),
    )


@contextmanager
def _sweeping(
    pack: Pack, plan: Plan, device: CpuDevice, pool: ReadPool
) -> Iterator[Iterator[list[float]]]:
    """Open an engine; yield, for sweep after sweep, the seconds of service of each stage."""

    def totals() -> Iterator[list[float]]:
        for run in runs:
            served = services(plan.stages, run.events, plan.choice.depth)
            yield [sum(item.seconds for item in row if item is not None) for row in served]

    with opened(pack, plan, device, pool) as engine:
        runs = measured_sweeps(engine, random_inputs(pack.manifest))
        next(runs)  # the first one touches all memory, and verifies
        yield totals()
