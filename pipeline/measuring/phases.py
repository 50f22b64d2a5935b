"""By how much phases take longer than the operators in them, measured one by one, say.

Between operators that run in turns caches hold what others left, and two cores hand rows to each other.
How much that is depends on the machine and the network: so regions of both few and many rows are run.
"""

from itertools import islice
from statistics import median

from loader.pool.pool import ReadPool
from models.packs.pack import Pack
from pipeline.devices.base import Device
from pipeline.execution.opened import opened
from pipeline.measuring.engines import measured_sweeps
from pipeline.measuring.sample_inputs import random_inputs
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.planning.rows.variants import QUICK_STEPS, Variant, find_variants
from pipeline.profiles.profile import Profile
from pipeline.program.row_times import phase_seconds
from pipeline.program.steps import Phase, regions_of, row_network
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.trace import TraceEvent
from pipeline.timing.traced_durations import services

_SWEEPS = 5


def phases_factor(pack: Pack, profile: Profile, device: Device, pool: ReadPool) -> float:
    """Return the factor for ``pack``; 1 where nothing runs on rows.

    Raises:
        LoaderError: weights.bin cannot be read. DeviceError: a kernel cannot be loaded or fails.
    """
    variants = [variant for variant in _variants(pack, profile) if variant.regions]
    if not variants:
        return 1.0
    chosen = [variants[0], variants[len(variants) // 2], variants[-1]]
    return median(_ratio(pack, variant, profile, device, pool) for variant in chosen)


def _variants(pack: Pack, profile: Profile) -> list[Variant]:
    manifest, network = pack.manifest, row_network(pack.manifest)
    if not network.operators:
        return []
    times, seconds = profile.row_times(network), profile.piece_seconds(manifest)
    return find_variants(manifest, network, times, seconds, QUICK_STEPS)


def _ratio(pack: Pack, variant: Variant, profile: Profile, device: Device, pool: ReadPool) -> float:
    """Return how long the phases of ``variant`` take, over what the profile says."""
    choice = Choice(regions=variant.regions)
    plan = make_plan(pack.manifest, ARCHITECTURES["pre"], choice=choice)
    network = row_network(pack.manifest)
    times = profile.row_times(network)
    said = sum(sum(phase_seconds(network, each.plan, times)) for each in regions_of(plan.steps))
    with opened(pack, plan, device, pool) as engine:
        runs = measured_sweeps(engine, random_inputs(pack.manifest))
        next(runs)
        took = median(_in_phases(plan, sweep.events) for sweep in islice(runs, _SWEEPS))
    return took / said


def _in_phases(plan: Plan, events: list[TraceEvent]) -> float:
    """Return the seconds that a sweep spent in phases."""
    served = services(plan.stages, events, plan.choice.depth)[-1]
    return sum(
        service.seconds
        for step, service in zip(plan.steps, served, strict=True)
        if isinstance(step, Phase) and service is not None
    )
