"""Delays of several plans of one pack, in turns: a noisy moment does not hit one of them alone."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from random import Random
from statistics import median
from time import process_time

from benchmarks.children.planned import checksums
from loader.pool.pool import ReadPool
from models.packs.pack import Pack
from pipeline.devices.base import Device
from pipeline.execution.opened import opened
from pipeline.measuring.sample_inputs import random_inputs
from pipeline.planning.plan import Plan


@dataclass(frozen=True)
class Delays:
    """Seconds of one plan's sweeps, turn by turn, and the checksums of what they answered.

    ``cpu_seconds``: what the whole process computed meanwhile; threads that wait for others count, too.
    """

    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    outputs: frozenset[str]


def over(seconds: Sequence[float], others: Sequence[float]) -> float:
    """Return how many times as long as ``others`` it took: the middle of all turns."""
    return median(a / b for a, b in zip(seconds, others, strict=True))


def delays(pack: Pack, device: Device, plans: Mapping[str, Plan], rounds: int) -> dict[str, Delays]:
    """Run each plan once in each of ``rounds``, in another order each time."""
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in plans}
    outputs: dict[str, set[str]] = {name: set() for name in plans}
    inputs = random_inputs(pack.manifest)
    with ExitStack() as stack:
        pool = stack.enter_context(closing(ReadPool()))
        engines = {
            name: stack.enter_context(opened(pack, plan, device, pool))
            for name, plan in plans.items()
        }
        order, random = list(engines), Random(0)
        for number in range(rounds + 1):
            random.shuffle(order)
            for name in order:
                began = process_time()
                answered, statistics = engines[name].answer(inputs, checksums)
                outputs[name].add(str(answered))
                if number:  # the first brings memory
                    cpu_seconds[name].append(process_time() - began)
                    seconds[name].append(statistics.delay_seconds)
    return {
        name: Delays(tuple(seconds[name]), tuple(cpu_seconds[name]), frozenset(outputs[name]))
        for name in plans
    }
