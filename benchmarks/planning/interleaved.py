"""Delays of several plans of one pack, in turns: a noisy moment does not hit one of them alone."""

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from random import Random
from statistics import median

from benchmarks.children.planned import checksums
from loader.pool.pool import ReadPool
from models.packs.pack import Pack
from pipeline.devices.base import Device
from pipeline.execution.opened import opened
from pipeline.measuring.sample_inputs import random_inputs
from pipeline.planning.plan import Plan


@dataclass(frozen=True)
class Delays:
    """Seconds of one plan's sweeps, turn by turn, and the checksums of what they answered."""

    seconds: tuple[float, ...]
    outputs: frozenset[str]

    def over(self, other: "Delays") -> float:
        """Return how many times as long as ``other`` it took: the middle of all turns."""
        return median(a / b for a, b in zip(self.seconds, other.seconds, strict=True))


def delays(pack: Pack, device: Device, plans: Mapping[str, Plan], rounds: int) -> dict[str, Delays]:
    """Run each plan once in each of ``rounds``, in another order each time."""
    seconds: dict[str, list[float]] = {name: [] for name in plans}
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
                answered, statistics = engines[name].answer(inputs, checksums)
                outputs[name].add(str(answered))
                seconds[name] += [statistics.delay_seconds] if number else []  # first: memory
    return {name: Delays(tuple(seconds[name]), frozenset(outputs[name])) for name in plans}
