"""How much reads, copies and kernels slow each other down in the architectures of seed 003, measured.

Times of reads on a quiet machine, of copies, of kernels with all weights in memory: none of them knows
what happens when all three run at once and wait for each other's threads. A few sweeps of each order do.
"""

from itertools import islice
from statistics import median

from loader.pool import ReadPool
from models.pack import Pack
from pipeline.architectures import ARCHITECTURES
from pipeline.devices.cpu import CpuDevice
from pipeline.inputs import random_inputs
from pipeline.observed import Services, services
from pipeline.planning.make import make_plan
from pipeline.profile import Overlap, Profile
from pipeline.sweeps import measured_sweeps, opened

#: One of each order of operations that sweeps can have.
ORDERS = ("seq", "sync", "async", "2s")


def measure_overlap(
    pack: Pack, name: str, profile: Profile, device: CpuDevice, pool: ReadPool, sweeps: int
) -> Overlap:
    """Return how long operations take in ``sweeps`` of architecture ``name``, over the profile's times."""
    plan = make_plan(pack.manifest, ARCHITECTURES[name])
    alone = [sum(row) for row in profile.durations(plan).stages]
    ratios: list[list[float]] = [[] for _ in plan.stages]
    with opened(pack, plan, device, pool) as engine:
        runs = measured_sweeps(engine, random_inputs(pack.manifest))
        next(runs)  # the first one touches all memory, and verifies
        for run in islice(runs, sweeps):
            served = services(plan.stages, run.events, plan.choice.depth)
            for row, took, expected in zip(ratios, _totals(served), alone, strict=True):
                row.append(took / expected if expected else 1.0)
    read, *copies, kernel = map(median, ratios)
    return Overlap(read=read, copying=copies[0] if copies else 1.0, kernel=kernel)


def _totals(served: Services) -> list[float]:
    return [sum(item.seconds for item in row if item is not None) for row in served]
