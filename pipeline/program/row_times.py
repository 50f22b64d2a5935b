"""How long phases take: the sum of their kernels on so many rows, and of the copies between them."""

import math
from typing import Protocol

from pipeline.program.regions import Action, Area, Call, Fill, Move, RegionPlan
from pipeline.program.row_network import RowNetwork


class RowTimes(Protocol):
    """Seconds of what phases are made of."""

    def call(self, operator: int, rows: int) -> float:
        """Return what row operator ``operator`` takes for ``rows`` rows of its output."""

    def first(self, operator: int) -> float:
        """Return what its first call in a sweep takes beside that."""

    def move(self, n_bytes: int) -> float:
        """Return what copying rows of ``n_bytes`` in all takes."""


def phase_seconds(network: RowNetwork, plan: RegionPlan, times: RowTimes) -> list[float]:
    """Return what each phase of ``plan`` takes."""
    known: dict[Action, float] = {}

    def seconds(action: Action) -> float:
        if action not in known:
            known[action] = _seconds(network, action, times)
        return known[action]

    found = [sum(map(seconds, phase)) for phase in plan.phases]
    called: set[int] = set()
    for number, phase in enumerate(plan.phases):
        fresh = {action.operator for action in phase if isinstance(action, Call)} - called
        found[number] += sum(map(times.first, fresh))
        called |= fresh
    return found


def _seconds(network: RowNetwork, action: Action, times: RowTimes) -> float:
    match action:
        case Call(operator, _, output):
            return times.call(operator, math.ceil(output.rows * _share(network, output)))
        case Move(target=target) | Fill(target=target):
            row_bytes = network.values[target.row_value].row_bytes
            share = _share(network, target)
            return times.move(math.ceil(target.planes * target.rows * row_bytes * share))


def _share(network: RowNetwork, area: Area) -> float:
    """Return the columns of ``area`` as a share of whole rows: nobody measures each width."""
    width = network.values[area.row_value].shape[3]
    return 1.0 if area.columns is None else area.columns.count / width
