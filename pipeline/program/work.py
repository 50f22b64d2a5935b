"""What pieces multiply; what regions cost beside them: how long phases take, what they compute twice."""

import math
from collections.abc import Sequence
from typing import Protocol

from models.network.macs import macs, weight_count
from models.packs.records.row_parts import GroupOperator
from pipeline.program.channels import bottleneck_of
from pipeline.program.program import PreparedPiece
from pipeline.program.region_plan import (
    Action,
    AreaCopy,
    ChannelCut,
    Compute,
    Fill,
    GraphCall,
    RegionPlan,
    WeightGather,
)
from pipeline.program.row_network import RowNetwork
from pipeline.program.steps import Step, regions_of


class RowTimes(Protocol):
    """Seconds of what phases are made of."""

    def call(self, operator: int, rows: int) -> float:
        """Return what row operator ``operator`` takes for ``rows`` rows of its output."""

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
        seconds = self._calls.get((operator, rows))
        if seconds is None:
            seconds = self._calls[operator, rows] = self._times.call(operator, rows)
        return seconds

    def move(self, n_bytes: int) -> float:
        seconds = self._moves.get(n_bytes)
        if seconds is None:
            seconds = self._moves[n_bytes] = self._times.move(n_bytes)
        return seconds

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

    return [sum(map(seconds, phase)) for phase in plan.phases]


def _seconds(network: RowNetwork, action: Action, times: RowTimes) -> float:
    match action:
        case GraphCall(operator, _, output):
            return times.call(operator, output.rows)
        case AreaCopy(target=target) | Fill(target=target):
            value = network.values[target.row_value]
            return times.move(target.pixels * (value.row_bytes // value.shape[3]))
        case Compute() | WeightGather():
            raise AssertionError("these are timed together")


# What pieces multiply, and about how long that takes a core that was not measured.
#
# Of such times only proportions decide.

MULTIPLICATIONS_A_SECOND = 30e9
BYTES_A_SECOND = 6e9


def computing_seconds(piece: PreparedPiece) -> float:
    """Return about how long ``piece`` takes beside its launch, by what it multiplies and touches."""
    operands = (*piece.inputs, *piece.outputs)
    n_bytes = sum(operand.n_bytes for operand in operands if operand.kind == "value")
    return multiplications(piece) / MULTIPLICATIONS_A_SECOND + n_bytes / BYTES_A_SECOND


def multiplications(piece: PreparedPiece) -> int:
    """Return about how often ``piece`` multiplies: each of its weights for each place of its output."""
    elements = sum(math.prod(operand.shape) for operand in piece.outputs if not operand.is_loose)
    return sum(
        macs(math.prod(weights.shape), _places(elements, weights.shape))
        for weights in piece.inputs
        if weights.kind == "span" and len(weights.shape) > 1
    )


def _places(elements: int, weights: tuple[int, ...]) -> int:
    """Return how many places an output of so many ``elements`` has: channels come first in ``weights``.

    In a matrix that was not turned round they come last.
    """
    channels = next((n for n in (weights[0], weights[-1]) if n and elements % n == 0), elements)
    return elements // channels if channels else 0


# Multiplications and additions (MACs) of a program beside those of its network: what regions make again.


def macs_ratio(steps: Sequence[Step]) -> float:
    """Return MACs executed / MACs of the network; 1.0 where every output is made once, as on rows."""
    regions = regions_of(steps)
    again = sum(_again(region.network, region.plan) for region in regions)
    return 1 + again / _of_network(regions[0].network) if again else 1.0


def again_ratio(network: RowNetwork, plan: RegionPlan) -> float:
    """Return MACs executed / MACs of the pieces of a region."""
    pieces = plan.region.pieces
    once = sum(multiplications(network.program.pieces[piece]) for piece in pieces)
    return 1 + _again(network, plan) / once if once else 1.0


def _again(network: RowNetwork, plan: RegionPlan) -> int:
    """Return the MACs of ``plan`` beyond those of making everything once."""
    if isinstance(plan.region.cut, ChannelCut):
        return _again_in_groups(network, plan)
    calls = (action for phase in plan.phases for action in phase if isinstance(action, GraphCall))
    pixels_made = dict.fromkeys(plan.operators, 0)
    for call in calls:
        pixels_made[call.operator] += call.output.rows * call.output.columns
    return sum(
        macs(_weights(network, number), pixels - min(pixels, _pixels(network, number)))
        for number, pixels in pixels_made.items()
    )


def _again_in_groups(network: RowNetwork, plan: RegionPlan) -> int:
    """Return the same of a bottleneck: overlaps of bands, and what is made again for factors of a gate."""
    item = bottleneck_of(network.program, plan.region.pieces)
    actions = (action for phase in plan.phases for action in phase)
    counts = [0] * len(item.operators)
    once = [macs(_weights_of(group), math.prod(group.shape[2:])) for group in item.operators]
    for action in actions:
        if isinstance(action, Compute):
            # Weights come second.
            weights = weight_count(place.shape for place in action.inputs[1:2])
            counts[action.operator] += macs(weights, math.prod(action.output.shape[2:]))
    return sum(max(count - single, 0) for count, single in zip(counts, once, strict=True))


def _weights_of(operator: GroupOperator) -> int:
    operands = (taken.weights for taken in operator.inputs[1:2])
    return weight_count(weights.shape for weights in operands if weights is not None)


def _of_network(network: RowNetwork) -> int:
    on_rows = sum(
        macs(_weights(network, number), _pixels(network, number)) for number in network.own
    )
    program = network.program
    others = (program.pieces[number] for number in program.own if number not in network.covered)
    return on_rows + sum(map(multiplications, others))


def _pixels(network: RowNetwork, number: int) -> int:
    return math.prod(network.values[network.operators[number].output].shape[2:])


def _weights(network: RowNetwork, number: int) -> int:
    return weight_count(item.shape for item in network.operators[number].weights)
