"""How long phases take: the sum of their kernels on so many, and of the copies between them."""

from typing import Protocol

from pipeline.program.cuts import ChannelCut
from pipeline.program.region_plan import (
    Action,
    AreaCopy,
    Compute,
    Fill,
    GraphCall,
    RegionPlan,
    WeightGather,
)
from pipeline.program.row_network import RowNetwork


class RowTimes(Protocol):
    """Seconds of what phases are made of."""

    def call(self, operator: int, rows: int) -> float:
        """Return what row operator ``operator`` takes for ``rows`` rows of its output."""

    def first(self, operator: int) -> float:
        """Return what its first call in a sweep takes beside that."""

    def move(self, n_bytes: int) -> float:
        """Return what copying rows of ``n_bytes`` in all takes."""

    def bottleneck(self, plan: RegionPlan) -> float:
        """Return what all of a bottleneck in groups of channels takes."""


class KnownTimes:
    """``times``, each worked out once: searches ask for the same ones thousands of times."""

    def __init__(self, times: RowTimes) -> None:
        self._times = times
        self._calls: dict[tuple[int, int], float] = {}
        self._moves: dict[int, float] = {}

    def call(self, operator: int, rows: int) -> float:
        found = self._calls.get((operator, rows))
        if found is None:
            found = self._calls[operator, rows] = self._times.call(operator, rows)
        return found

    def first(self, operator: int) -> float:
        return self._times.first(operator)

    def move(self, n_bytes: int) -> float:
        found = self._moves.get(n_bytes)
        if found is None:
            found = self._moves[n_bytes] = self._times.move(n_bytes)
        return found

    def bottleneck(self, plan: RegionPlan) -> float:
        return self._times.bottleneck(plan)


def phase_seconds(network: RowNetwork, plan: RegionPlan, times: RowTimes) -> list[float]:
    """Return what each phase of ``plan`` takes; of a bottleneck's by how much they do."""
    if isinstance(plan.region.cut, ChannelCut):
        counts = [len(phase) for phase in plan.phases]
        total = times.bottleneck(plan)
        return [total * count / sum(counts) for count in counts]
    # Equal actions are one object, and to hash what an action says takes longer than to time it.
    known: dict[int, float] = {}

    def seconds(action: Action) -> float:
        took = known.get(id(action))
        if took is None:
            took = known[id(action)] = _seconds(network, action, times)
        return took

    found = [sum(map(seconds, phase)) for phase in plan.phases]
    called: set[int] = set()
    for number, phase in enumerate(plan.phases):
        fresh = {action.operator for action in phase if isinstance(action, GraphCall)} - called
        found[number] += sum(map(times.first, fresh))
        called |= fresh
    return found


def _seconds(network: RowNetwork, action: Action, times: RowTimes) -> float:
    match action:
        case GraphCall(operator, _, _, output):
            return times.call(operator, output.rows)
        case AreaCopy(target=target) | Fill(target=target):
            value = network.values[target.row_value]
            return times.move(target.pixels * (value.row_bytes // value.shape[3]))
        case Compute() | WeightGather():
            raise AssertionError("these are timed together")
