"""What a device could choose among, tried on a pack before its times are measured."""

from contextlib import closing
from itertools import islice
from statistics import median

from loader.pool.pool import ReadPool
from models.packs.pack import Pack
from pipeline.devices.base import Device, Tuning
from pipeline.execution.opened import opened
from pipeline.measuring.engines import measured_sweeps
from pipeline.measuring.overlaps import typical_plan
from pipeline.measuring.sample_inputs import random_inputs
from pipeline.program.prepare import prepare

_SWEEPS = 5


def choose_tuning(pack: Pack, device: Device) -> Tuning:
    """Return what is fastest for ``pack`` on ``device``, which works so afterwards.

    Memory kinds are compared by sweeps of ``auto`` in a ring of a few chunks.

    Raises:
        LoaderError: weights.bin cannot be read. DeviceError: a kernel cannot be loaded or fails.
    """
    candidates = device.tunings(pack.graphs, pack.weights_path)
    if len(candidates) == 1:
        best = candidates[0]
    else:
        with closing(ReadPool()) as pool:
            best = min(candidates, key=lambda tuning: _seconds(pack, device, tuning, pool))
    device.tune(best)
    return best


def _seconds(pack: Pack, device: Device, tuning: Tuning, pool: ReadPool) -> float:
    device.tune(tuning)
    program = prepare(pack, device)
    plan = typical_plan(program, "auto", device)
    with opened(program, plan, device, pool) as engine:
        runs = measured_sweeps(engine, random_inputs(program))
        next(runs)  # the first one touches all memory, and verifies
        return median(sweep.delay_seconds for sweep in islice(runs, _SWEEPS))
