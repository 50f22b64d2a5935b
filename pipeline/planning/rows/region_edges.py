"""Regions as edges between places of a network: where they begin and end, and what they take."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from models.packs.records.row_parts import Bottleneck
from pipeline.planning.rows.ways import NO_ARENA, Numbers, RegionEnds, Ways
from pipeline.planning.rows.whole_pieces import LiveValues, WholePieces
from pipeline.program.choice import BINDING_BYTES
from pipeline.program.program import Program
from pipeline.program.region_plan import (
    ChannelCut,
    Compute,
    Cut,
    Region,
    RegionError,
    RegionPlan,
    RowCut,
)
from pipeline.program.regions import plan_region
from pipeline.program.row_network import RowNetwork
from pipeline.program.sketches import Sketch
from pipeline.program.steps import MOVE_BYTES, STEP_BYTES
from pipeline.program.stopping import go_on
from pipeline.program.work import RowTimes, phase_seconds

# Bottlenecks in groups of channels: which groups and rows plans may choose, and what each takes.

# All rows at once, or as many bands. Each binds kernels of its own and makes overlaps again.
_BANDS = (1, 4, 8)


@dataclass(frozen=True, slots=True)
class RegionInGroups:
    """What ``region`` takes: bytes of its own and of what it binds, and seconds.

    ``own_bytes``: of strips, and of what it does not write over what it reads, though whole pieces do.
    ``touched``: the row values that it reads or writes where these lie whole. ``graphs``: that its kernels
    run.
    """

    region: Region
    own_bytes: int
    scratch_bytes: int
    binding_bytes: int
    seconds: float
    touched: frozenset[int]
    graphs: frozenset[int]

    @classmethod
    def of(cls, network: RowNetwork, plan: RegionPlan, seconds: float) -> "RegionInGroups":
        """Return what ``plan`` takes, which runs for so many seconds."""
        # Of those that are alike all are one object.
        actions = {id(action): action for phase in plan.phases for action in phase}.values()
        kernels = [action for action in actions if isinstance(action, Compute)]
        alone = sum(network.values[value].n_bytes for value in plan.alone)
        return cls(
            plan.region,
            plan.live_bytes() + alone,
            plan.scratch_bytes,
            BINDING_BYTES * len(kernels)
            + MOVE_BYTES * (len(actions) - len(kernels))
            + STEP_BYTES * len(plan.phases),
            seconds,
            plan.read | plan.written,
            frozenset(action.graph for action in kernels),
        )


def group_regions(program: Program) -> Iterator[Region]:
    """Yield the bottlenecks of ``program`` in all groups and bands that plans may choose."""
    for item in program.bottlenecks:
        for channels in item.sizes:
            for rows in _rows(item):
                yield Region(item.first_piece, item.end_piece, ChannelCut(channels, rows))


def _rows(item: Bottleneck) -> list[int]:
    last = item.operators[-1].height
    gated = any(operator.kind == "once" for operator in item.operators)
    counts = (1,) if gated else _BANDS
    return list(dict.fromkeys(-(-last // count) for count in counts))


def in_groups(
    network: RowNetwork, regions: Iterable[Region], times: RowTimes
) -> Iterator[RegionInGroups]:
    """Yield what each of ``regions`` takes; not of those that cannot run."""
    for region in regions:
        go_on()
        try:
            plan = plan_region(network, region)
        except RegionError:
            continue
        yield RegionInGroups.of(network, plan, sum(phase_seconds(network, plan, times)))


# Edges between places.


class RegionEdges:
    """Those between ``places`` that need less of an arena than all pieces ``whole``.

    ``edges``: by the number of the place where they end. What exists only as its parts, ``apart``, none may
    have whole, nor may one in groups of channels have an input that is ``given`` by rows.
    """

    def __init__(
        self,
        network: RowNetwork,
        live: LiveValues,
        places: Sequence[int],
        whole: WholePieces,
        apart: frozenset[int],
        given: frozenset[int] = frozenset(),
        *,
        into_arena: bool = True,
    ) -> None:
        self.edges: dict[int, RegionEnds] = {}
        self._network = network
        self._live = live
        self._places = places
        self._numbers = {place: number for number, place in enumerate(places)}
        self._whole = whole
        self._most = whole.most
        self._apart = apart
        self._given = given
        self._into_arena = into_arena
        # Operators and weights before each place; where pieces need much.
        self._at = np.array(places, np.int64)
        self._weights = np.array([live.weights(places[0], place) for place in places])

    def ways(self) -> Ways:
        """Return the ways with what is known now."""
        return Ways(self._places, self._whole.cost, self.edges, self._into_arena)

    def least_arena(self) -> int:
        """Return the least arena of any way that is known now, in the largest ring."""
        limits = self._whole.limits(self._whole.rings[-1:], NO_ARENA)
        return int(self.ways().least_arena(limits)[0])

    def need(self, pieces: range, least: int) -> bool:
        """Return whether ``pieces`` need as much as the ``least`` arena, or more, whole."""
        return max(self._live.live[pieces.start : pieces.stop]) >= least

    def useful_weights(self) -> int:
        """Return the most weights of a region that can be worth it: less than all that is needed now."""
        limits = self._whole.limits(self._whole.rings, NO_ARENA)
        return int((self.ways().least_arena(limits) + limits.rings).min())

    def line_buffer_limit(self, end: int) -> int:
        """Return the bytes of strips that are too many for a region that ends there."""
        return int(self._most - self._live.crossing[end])

    def take(self, end: int, found: Iterable[Sketch]) -> None:
        """Take the regions of sketches that end at ``end`` beside those that are there."""
        edges = self._on_rows(end, found)
        if edges is not None:
            _put(self.edges, self._numbers[end], edges)

    def take_in_groups(self, found: Iterable[RegionInGroups]) -> None:
        """Take regions in groups of channels beside those that are there."""
        for item in found:
            edges = self._in_groups(item)
            if edges is not None:
                _put(self.edges, self._numbers[item.region.end_piece], edges)

    def starts(self, end: int, most_weights: int) -> Numbers:
        """Return where a region that ends at ``end`` may begin, with less than so many bytes of weights."""
        run = self._network.run_to(end)
        first, last = bisect_left(self._places, run.start), self._numbers[end]
        near = self._weights[last] - self._weights[first:last] < most_weights
        places: Numbers = self._at[first:last][near]
        return places

    def ends(self) -> list[int]:
        """Return the places where regions may end, those first that have the least to keep far around.

        There is an operator in each of these regions: where pieces only copy, none ends.
        """
        network, crossing = self._network, self._live.crossing
        places = [place for place in sorted(network.places) if place - 1 in network.covered]
        reaches = dict(zip(places, _reaches([crossing[place] for place in places]), strict=True))
        ends = [place for place in places if network.operators_within(network.run_to(place))]
        return sorted(ends, key=lambda place: (-reaches[place], crossing[place], place))

    def _height(self, end: int) -> int:
        """Return the rows of what the last operator of a region that ends there makes."""
        last = self._network.operators[self._network.operators_before(end) - 1]
        return self._network.values[last.output].height

    def _on_rows(self, end: int, found: Iterable[Sketch]) -> RegionEnds | None:
        """Return what of the sketches that end at ``end`` is worth a thought; None: nothing."""
        sketches = [sketch for sketch in found if not self._has(self._apart, sketch.touched)]
        if not sketches:
            return None
        rows = sketches[0].rows  # those of all that end there
        own = [sketch.strip_bytes - sketch.shared_bytes for sketch in sketches]
        firsts = [sketch.first_piece for sketch in sketches]
        touched = [sketch.touched for sketch in sketches]
        beside = [self._live.beside(*item) for item in zip(firsts, repeat(end), touched)]
        arena = np.array(own) + np.array(beside)[:, None]
        bound = np.array([sketch.binding_bytes for sketch in sketches])
        bound += -(-self._height(end) // np.array(rows, np.int64)) * STEP_BYTES
        which = arena < self._most
        if not which.any():
            return None
        start = np.searchsorted(self._at, firsts)
        weights = self._weights[self._numbers[end]] - self._weights[start]
        each = np.ones_like(arena)
        return RegionEnds(
            (start[:, None] * each)[which],
            arena[which],
            np.array([sketch.scratch_bytes for sketch in sketches])[which],
            (weights[:, None] * each)[which],
            bound[which],
            np.array([sketch.seconds for sketch in sketches])[which],
            np.broadcast_to(_objects(map(RowCut, rows)), arena.shape)[which],
        )

    def _in_groups(self, item: RegionInGroups) -> RegionEnds | None:
        """Return the edge that is ``item``; None: it is none of those that are asked for."""
        first, end = item.region.first_piece, item.region.end_piece
        if first not in self._numbers or end not in self._numbers:
            return None
        n_bytes = item.own_bytes + self._live.beside(first, end, item.touched, by_rows=False)
        if n_bytes >= self._most or self._has(self._apart | self._given, item.touched):
            return None
        weights = self._live.weights(first, end)
        start, arena, scratch, ring, bound = (
            np.array([number], np.int64)
            for number in (
                self._numbers[first],
                n_bytes,
                item.scratch_bytes,
                weights,
                item.binding_bytes,
            )
        )
        seconds = np.array([item.seconds])
        return RegionEnds(start, arena, scratch, ring, bound, seconds, _objects([item.region.cut]))

    def _has(self, missing: frozenset[int], touched: frozenset[int]) -> bool:
        """Return whether one of these row values would have to be there whole, and is ``missing``."""
        return not missing.isdisjoint(self._network.values[number].value for number in touched)


def _reaches(numbers: Sequence[int]) -> list[int]:
    """Return how far it is from each of ``numbers`` to one that is less; as many as there are: none is."""
    reaches = [len(numbers)] * len(numbers)
    for order in (range(len(numbers)), range(len(numbers) - 1, -1, -1)):
        open_: list[int] = []  # ascending numbers that may be the next less one
        for position in order:
            while open_ and numbers[open_[-1]] >= numbers[position]:
                open_.pop()
            if open_:
                reaches[position] = min(reaches[position], abs(position - open_[-1]))
            open_.append(position)
    return reaches


def _put(found: dict[int, RegionEnds], place: int, edges: RegionEnds) -> None:
    """Put ``edges`` behind those that end at ``place``."""
    found[place] = found[place].followed_by(edges) if place in found else edges


def _objects(cuts: Iterable[Cut]) -> NDArray[np.object_]:
    listed = list(cuts)
    array = np.empty(len(listed), np.object_)
    array[:] = listed
    return array
