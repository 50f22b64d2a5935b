"""Measuring bottlenecks in groups of channels: whole sweeps, in which as many as can run so, alike."""

from collections.abc import Iterable, Iterator
from itertools import islice

from loader.pool.pool import ReadPool
from pipeline.devices.base import Device
from pipeline.execution.opened import opened
from pipeline.measuring.engines import measured_sweeps
from pipeline.measuring.sample_inputs import random_inputs
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.planning.rows.in_groups import group_regions
from pipeline.profiles.row_kernels import group_key
from pipeline.program.cuts import Region, RegionError
from pipeline.program.program import Program
from pipeline.program.steps import Phase, planned_region
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.timing.traced_durations import services

_SWEEPS = 2


def group_seconds(program: Program, device: Device, pool: ReadPool) -> Iterator[tuple[str, float]]:
    """Yield times by key of all that plans may choose: a few of each.

    Raises:
        LoaderError: weights.bin cannot be read. DeviceError: a kernel cannot be loaded or fails.
    """
    regions = [region for region in group_regions(program) if _is_possible(program, region)]
    for together in _apart(regions):
        choice = Choice(regions=tuple(sorted(together, key=lambda region: region.first_piece)))
        plan = make_plan(program, ARCHITECTURES["pre"], choice=choice)
        with opened(program, plan, device, pool) as engine:
            runs = measured_sweeps(engine, random_inputs(program))
            next(runs)  # the first one touches all memory
            for sweep in islice(runs, _SWEEPS):
                served = services(plan.stages, sweep.events, plan.choice.depth)[-1]
                seconds = dict.fromkeys(together, 0.0)
                for step, service in zip(plan.steps, served, strict=True):
                    if isinstance(step, Phase) and service is not None:
                        seconds[step.region.plan.region] += service.seconds
                for region, took in seconds.items():
                    yield group_key(region), took


def _is_possible(program: Program, region: Region) -> bool:
    try:
        planned_region(program, region)
    except RegionError:
        return False
    return True


def _apart(regions: Iterable[Region]) -> list[list[Region]]:
    """Return ``regions`` in as few lists as share no piece within one."""
    found: list[list[Region]] = []
    for region in regions:
        for together in found:
            if all(
                region.end_piece <= other.first_piece or other.end_piece <= region.first_piece
                for other in together
            ):
                together.append(region)
                break
        else:
            found.append([region])
    return found
