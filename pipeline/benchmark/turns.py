"""All contenders run once, one after the other, again and again: a busy machine is busy for all."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from pipeline.benchmark.contenders import Contender
from pipeline.energy.meter import Energy, EnergyMeter

_WARM_UP = 2
# Of one run: a moment of nothing, so that all begin as a request that comes now and then does.
_PAUSE_SECONDS = 0.005


@dataclass
class Samples:
    """What a contender's runs gave: seconds, joules; ``outputs`` of its first run."""

    contender: Contender
    delays: list[float] = field(default_factory=list)
    stalls: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    energies: list[Energy] = field(default_factory=list)
    outputs: dict[str, NDArray[Any]] = field(default_factory=dict, repr=False)


def take_turns(
    contenders: Sequence[Contender],
    iterations: int,
    meter: EnergyMeter,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Samples]:
    """Run each contender ``iterations`` times after a warm-up; return samples in their order.

    A turn ends when nothing of the contender runs any more. ``progress``: called with the rounds done.
    """
    samples = [Samples(contender) for contender in contenders]
    for turn in range(-_WARM_UP, iterations):
        # The order rotates: what runs after a cold neighbour would always pay for it.
        first = turn % len(samples)
        for each in (*samples[first:], *samples[:first]):
            _run(each, meter, keep=turn >= 0)
            if turn == -_WARM_UP:
                each.outputs = dict(each.contender.outputs())
        progress(turn + 1)
    return samples


def _run(samples: Samples, meter: EnergyMeter, keep: bool) -> None:
    contender = samples.contender
    time.sleep(_PAUSE_SECONDS)
    with meter.measure() as energy:
        delay, stall = contender.run()
    cpu = contender.settle()
    if keep:
        samples.delays.append(delay)
        samples.stalls.append(stall)
        samples.cpu.append(cpu)
        samples.energies.append(energy)
