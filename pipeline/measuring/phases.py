"""By how much phases take longer than the operators in them, measured one by one, say.

Between operators that run in turns caches hold what others left, and two cores hand rows to each other.
How much that is depends on the machine and the network: so regions of both few and many rows are run.
The whole network is run in the same minute: a machine's speed changes, and phases are compared with pieces.
"""

from itertools import islice
from statistics import median

from loader.pool.pool import ReadPool
from models.packs.records.pieces import Piece
from pipeline.devices.base import Device
from pipeline.execution.opened import opened
from pipeline.measuring.engines import measured_sweeps
from pipeline.measuring.sample_inputs import random_inputs
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.planning.rows.variants import Variant, find_variants
from pipeline.planning.rows.walk import QUICK
from pipeline.profiles.profile import Profile
from pipeline.program.cuts import Region
from pipeline.program.program import Program
from pipeline.program.steps import Phase, Step, row_network
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.schedule.trace import TraceEvent
from pipeline.timing.traced_durations import services

_SWEEPS = 5


def phases_factor(program: Program, profile: Profile, device: Device, pool: ReadPool) -> float:
    """Return the factor for ``program``; 1 where nothing runs on rows.

    Raises:
        LoaderError: weights.bin cannot be read. DeviceError: a kernel cannot be loaded or fails.
    """
    variants = [variant for variant in _variants(program, profile) if variant.regions]
    if not variants:
        return 1.0
    chosen = [variants[0], variants[len(variants) // 2], variants[-1]]
    whole = _Run(program, (), profile)
    speed = whole.ratio(Piece, device, pool)
    runs = (_Run(program, variant.regions, profile) for variant in chosen)
    return median(run.ratio(Phase, device, pool) for run in runs) / speed


def _variants(program: Program, profile: Profile) -> tuple[Variant, ...]:
    network = row_network(program)
    if not network.operators:
        return ()
    times, seconds = profile.row_times(network), profile.piece_seconds(program)
    return find_variants(program, network, times, seconds, QUICK).found


class _Run:
    """Sweeps of ``program``, weights in memory and ``regions`` on rows, beside what ``profile`` says."""

    def __init__(self, program: Program, regions: tuple[Region, ...], profile: Profile) -> None:
        self._program = program
        choice = Choice(regions=regions)
        self._plan = make_plan(program, ARCHITECTURES["pre"], choice=choice)
        self._said = profile.durations(self._plan).stages[-1]

    def ratio(self, kind: type[Step], device: Device, pool: ReadPool) -> float:
        """Return how long steps of one ``kind`` take over what the profile says."""
        with opened(self._program, self._plan, device, pool) as engine:
            sweeps = measured_sweeps(engine, random_inputs(self._program))
            next(sweeps)
            took = median(self._took(kind, sweep.events) for sweep in islice(sweeps, _SWEEPS))
        pairs = zip(self._plan.steps, self._said, strict=True)
        return took / sum(said for step, said in pairs if isinstance(step, kind))

    def _took(self, kind: type[Step], events: list[TraceEvent]) -> float:
        served = services(self._plan.stages, events, self._plan.choice.depth)[-1]
        return sum(
            service.seconds
            for step, service in zip(self._plan.steps, served, strict=True)
            if isinstance(step, kind) and service is not None
        )
