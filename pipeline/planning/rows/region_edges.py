"""Regions as edges between places of a network: where they begin and end, and what they take."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import NamedTuple

import numpy as np

from pipeline.planning.rows.in_groups import RegionInGroups
from pipeline.planning.rows.live_values import LiveValues
from pipeline.planning.rows.ways import Edges
from pipeline.program.cuts import Region
from pipeline.program.row_network import RowNetwork
from pipeline.program.sketching.sketches import Sketch
from pipeline.program.steps import STEP_BYTES

# Regions of so few operators are always tried.
_FEW_OPERATORS = 6


class _Edge(NamedTuple):
    """An item of each array of ``Edges``."""

    start: int
    rows: int
    arena: int
    ring: int
    bound: int
    seconds: float
    in_groups: RegionInGroups | None = None


class RegionEdges:
    """Those between ``places`` that need less than ``most`` bytes of an arena.

    ``edges``: by the number of the place where they end. What exists only as its parts, ``apart``, none may
    have whole, nor may one in groups of channels have an input that is ``given`` by rows.
    """

    def __init__(
        self,
        network: RowNetwork,
        live: LiveValues,
        places: Sequence[int],
        most: int,
        apart: frozenset[int],
        given: frozenset[int] = frozenset(),
    ) -> None:
        self.edges: dict[int, Edges] = {}
        self._network = network
        self._live = live
        self._places = places
        self._numbers = {place: number for number, place in enumerate(places)}
        self._most = most
        self._apart = apart
        self._given = given
        self._graphs: dict[Region, frozenset[int]] = {}

    def take(self, end: int, found: Iterable[Sketch]) -> None:
        """Take the regions of sketches that end at ``end``."""
        edges = self._on_rows(end, found)
        if edges is not None:
            self.edges[self._numbers[end]] = edges

    def take_in_groups(self, found: Iterable[RegionInGroups]) -> None:
        """Take regions in groups of channels beside those that are there."""
        for item in found:
            edges = _stacked(self._in_groups(item))
            if edges is not None:
                place = self._numbers[item.region.end_piece]
                before = self.edges.get(place)
                self.edges[place] = edges if before is None else before.followed_by(edges)
                self._graphs[replace(item.region, in_arena=False)] = item.graphs

    def with_ideal_groups(self) -> dict[int, Edges]:
        """Return ``edges``, and bottlenecks that take nothing but what lives before or behind them."""
        found, crossing = dict(self.edges), self._live.crossing
        for item in self._network.program.bottlenecks:
            first, end = item.first_piece, item.end_piece
            if first in self._numbers and end in self._numbers:
                arena = max(crossing[first], crossing[end])
                edges = _stacked([_Edge(self._numbers[first], 1, arena, 0, 0, 0.0)])
                before = found.get(self._numbers[end])
                assert edges is not None
                found[self._numbers[end]] = edges if before is None else before.followed_by(edges)
        return found

    def graphs(self, region: Region) -> frozenset[int] | None:
        """Return the graphs of a region in groups of channels; None: it is on rows."""
        return self._graphs.get(replace(region, in_arena=False))

    def starts(self, end: int, most_weights: int, reach: float) -> list[int]:
        """Return where a region that ends at ``end`` may begin, with less than so many bytes of weights.

        And with at most ``reach`` operators for each row that it makes.
        """
        run = next(run for run in self._network.runs if run.start < end <= run.stop)
        last = self._network.operators_before(end)
        most = max(reach * self._height(end), _FEW_OPERATORS)
        return [
            place
            for place in self._places
            if run.start <= place < end
            and last - self._network.operators_before(place) <= most
            and self._live.weights(place, end) < most_weights
        ]

    def ends(self) -> list[int]:
        """Return the places where regions may end, those first that have the least to keep far around."""
        crossing = self._live.crossing
        places = [
            place for place in sorted(self._network.places) if place - 1 in self._network.covered
        ]

        def reach(position: int) -> int:
            """Return how far it is to a place with less."""
            own = crossing[places[position]]
            return min(
                (
                    abs(other - position)
                    for other, place in enumerate(places)
                    if crossing[place] < own
                ),
                default=len(places),
            )

        reaches = {place: reach(position) for position, place in enumerate(places)}
        return sorted(places, key=lambda place: (-reaches[place], crossing[place], place))

    def _height(self, end: int) -> int:
        """Return the rows of what the last operator of a region that ends there makes."""
        last = self._network.operators[self._network.operators_before(end) - 1]
        return self._network.values[last.output].height

    def _on_rows(self, end: int, found: Iterable[Sketch]) -> Edges | None:
        """Return what of the sketches that end at ``end`` is worth a thought; None: nothing."""
        sketches = [sketch for sketch in found if not self._has(self._apart, sketch.touched)]
        if not sketches:
            return None
        rows = np.array(sketches[0].rows, np.int64)  # those of all that end there
        own = [sketch.strip_bytes - sketch.shared_bytes for sketch in sketches]
        firsts = [sketch.first_piece for sketch in sketches]
        touched = [sketch.touched for sketch in sketches]
        beside = [self._live.beside(*item) for item in zip(firsts, repeat(end), touched)]
        weights = [self._live.weights(first, end) for first in firsts]
        arena = np.array(own) + np.array(beside)[:, None]
        bound = np.array([sketch.binding_bytes for sketch in sketches])
        bound += -(-self._height(end) // rows) * STEP_BYTES
        which = arena < self._most
        if not which.any():
            return None
        start = np.array([self._numbers[first] for first in firsts])
        each = np.ones_like(arena)
        return Edges(
            (start[:, None] * each)[which],
            (rows * each)[which],
            arena[which],
            (np.array(weights)[:, None] * each)[which],
            bound[which],
            np.array([sketch.seconds for sketch in sketches])[which],
        )

    def _in_groups(self, item: RegionInGroups) -> Iterator[_Edge]:
        first, end = item.region.first_piece, item.region.end_piece
        if first not in self._numbers or end not in self._numbers:
            return
        n_bytes = item.own_bytes + self._live.beside(first, end, item.touched, by_rows=False)
        if n_bytes < self._most and not self._has(self._apart | self._given, item.touched):
            yield _Edge(
                self._numbers[first],
                item.region.cut.rows,
                n_bytes,
                self._live.weights(first, end),
                item.binding_bytes,
                item.seconds,
                item,
            )

    def _has(self, missing: frozenset[int], touched: frozenset[int]) -> bool:
        """Return whether one of these row values would have to be there whole, and is ``missing``."""
        return not missing.isdisjoint(self._network.values[number].value for number in touched)


def _stacked(found: Iterable[_Edge]) -> Edges | None:
    """Return edges as arrays; None: there are none."""
    edges = list(found)
    if not edges:
        return None
    numbers = np.array([edge[:5] for edge in edges], np.int64)
    start, rows, arena, ring, bound = np.ascontiguousarray(numbers.T)
    seconds = np.array([edge.seconds for edge in edges])
    numbered = enumerate(edge.in_groups for edge in edges)
    in_groups = {number: item for number, item in numbered if item is not None}
    return Edges(start, rows, arena, ring, bound, seconds, in_groups)
