"""How long phases take: the sum of their kernels on so many rows, and of the copies between them."""

from typing import Protocol

from pipeline.program.regions import (
    Action,
    Area,
    Call,
    Compute,
    Fill,
    Gather,
    Move,
    RegionPlan,
)
from pipeline.program.row_network import RowNetwork


class RowTimes(Protocol):
    """Seconds of what phases are made of."""

    def call(self, operator: int, rows: int, columns: int | None = None) -> float:
        """Return what row operator ``operator`` takes for ``rows`` rows of its output.

        ``columns``: so many of each row, as a tile; None: whole rows.
        """

    def first(self, operator: int) -> float:
        """Return what its first call in a sweep takes beside that."""

    def move(self, n_bytes: int, runs: int = 0) -> float:
        """Return what copying ``n_bytes`` in all takes.

        ``runs``: into how many parts they are cut that lie side by side; 0: few, as rows are.
        """

    def bottleneck(self, plan: RegionPlan) -> float:
        """Return what all of a bottleneck in groups of channels takes."""


def phase_seconds(network: RowNetwork, plan: RegionPlan, times: RowTimes) -> list[float]:
    """Return what each phase of ``plan`` takes; of a bottleneck's by how much they do."""
    if plan.region.channels is not None:
        counts = [len(phase) for phase in plan.phases]
        total = times.bottleneck(plan)
        return [total * count / sum(counts) for count in counts]
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
            columns = None if output.columns is None else output.columns.count
            return times.call(operator, output.rows, columns)
        case Move(target=target) | Fill(target=target):
            return _copied(network, target, times)
        case Compute() | Gather():
            raise AssertionError("these are timed together")


def _copied(network: RowNetwork, target: Area, times: RowTimes) -> float:
    """Return what copying to ``target`` takes: rows of a plane lie side by side, columns of a row do."""
    value = network.values[target.row_value]
    rows = target.planes * target.rows
    if target.columns is None:
        return times.move(rows * value.row_bytes)
    return times.move(rows * target.columns.count * (value.row_bytes // value.shape[3]), rows)
