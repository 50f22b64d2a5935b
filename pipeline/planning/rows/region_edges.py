"""Regions as edges between places of a network: where they begin and end, and what they take."""

from collections.abc import Iterable, Sequence
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from pipeline.planning.rows.in_groups import RegionInGroups
from pipeline.planning.rows.live_values import LiveValues
from pipeline.planning.rows.ways import Edges, Ways, most_from
from pipeline.planning.rows.whole_pieces import WholePieces
from pipeline.program.cuts import Channels, Cut, Rows
from pipeline.program.row_network import RowNetwork
from pipeline.program.sketching.sketches import Sketch
from pipeline.program.steps import STEP_BYTES

# Regions of so few operators are always tried.
_FEW_OPERATORS = 6
# A region that saves memory of a few pieces reaches at most so many operators beyond these on either side.
_BEYOND = 10
# More than all weights.
_ANY_RING = 1 << 60


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
    ) -> None:
        self.edges: dict[int, Edges] = {}
        self._network = network
        self._live = live
        self._places = places
        self._numbers = {place: number for number, place in enumerate(places)}
        self._whole = whole
        self._most = whole.most
        self._apart = apart
        self._given = given

    def ways(self) -> Ways:
        """Return the ways with what is known now."""
        return Ways(self._places, self._whole.cost, self.edges)

    def least_arena(self) -> int:
        """Return the least arena of any way that is known now, in the largest ring."""
        return int(self.ways().least_arena(self._whole.rings[-1:])[0])

    def ideal_arena(self) -> int:
        """Return that if bottlenecks took nothing but what lives before or behind them."""
        found, crossing = dict(self.edges), self._live.crossing
        for item in self._network.program.bottlenecks:
            first, end = item.first_piece, item.end_piece
            if first in self._numbers and end in self._numbers:
                arena = max(crossing[first], crossing[end])
                edges = _edge(self._numbers[first], arena, 0, 0, 0.0, Channels(1, 1))
                _put(found, self._numbers[end], edges)
        ways = Ways(self._places, self._whole.cost, found)
        return int(ways.least_arena(np.array([_ANY_RING]))[0])

    def useful_weights(self) -> int:
        """Return the most weights of a region that can be worth it: less than all that is needed now."""
        rings = self._whole.rings
        return int((self.ways().least_arena(rings) + rings).min())

    def useful(self, end: int, starts: Sequence[int], least: int | None) -> dict[int, int]:
        """Return from where a region to ``end`` may be of use, with the bytes of strips that are too many.

        ``least``: only such as save memory where it counts, since pieces that need less than that of the
        arena may as well be whole.
        """
        kept, number = self._live.crossing[end], self._numbers[end]
        if least is None:
            return dict.fromkeys(starts, self._most - kept)
        each = self._whole.cost.arena
        needed = np.flatnonzero(each[:number] >= least)
        if not len(needed) or self._operators(needed[-1] + 1, number) > _BEYOND:
            return {}
        most = np.minimum(most_from(each, number), self._most) - kept
        found = {}
        for start in starts:
            first = self._numbers[start]
            behind = needed[np.searchsorted(needed, first) :]
            if len(behind) and self._operators(first, behind[0]) <= _BEYOND:
                found[start] = int(most[first])
        return found

    def _operators(self, first: int, end: int) -> int:
        """Return how many operators lie between two places, by number."""
        before = self._network.operators_before
        return before(self._places[end]) - before(self._places[first])

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
        rows = sketches[0].rows  # those of all that end there
        own = [sketch.strip_bytes - sketch.shared_bytes for sketch in sketches]
        firsts = [sketch.first_piece for sketch in sketches]
        touched = [sketch.touched for sketch in sketches]
        beside = [self._live.beside(*item) for item in zip(firsts, repeat(end), touched)]
        weights = [self._live.weights(first, end) for first in firsts]
        arena = np.array(own) + np.array(beside)[:, None]
        bound = np.array([sketch.binding_bytes for sketch in sketches])
        bound += -(-self._height(end) // np.array(rows, np.int64)) * STEP_BYTES
        which = arena < self._most
        if not which.any():
            return None
        start = np.array([self._numbers[first] for first in firsts])
        each = np.ones_like(arena)
        return Edges(
            (start[:, None] * each)[which],
            arena[which],
            (np.array(weights)[:, None] * each)[which],
            bound[which],
            np.array([sketch.seconds for sketch in sketches])[which],
            np.broadcast_to(_objects(map(Rows, rows)), arena.shape)[which],
        )

    def _in_groups(self, item: RegionInGroups) -> Edges | None:
        """Return the edge that is ``item``; None: it is none of those that are asked for."""
        first, end = item.region.first_piece, item.region.end_piece
        if first not in self._numbers or end not in self._numbers:
            return None
        n_bytes = item.own_bytes + self._live.beside(first, end, item.touched, by_rows=False)
        if n_bytes >= self._most or self._has(self._apart | self._given, item.touched):
            return None
        ring = self._live.weights(first, end)
        start = self._numbers[first]
        return _edge(start, n_bytes, ring, item.binding_bytes, item.seconds, item.region.cut)

    def _has(self, missing: frozenset[int], touched: frozenset[int]) -> bool:
        """Return whether one of these row values would have to be there whole, and is ``missing``."""
        return not missing.isdisjoint(self._network.values[number].value for number in touched)


def _edge(start: int, arena: int, ring: int, bound: int, seconds: float, cut: Cut) -> Edges:
    """Return one edge."""
    numbers = (np.array([number], np.int64) for number in (start, arena, ring, bound))
    return Edges(*numbers, np.array([seconds]), _objects([cut]))


def _put(found: dict[int, Edges], place: int, edges: Edges) -> None:
    """Put ``edges`` behind those that end at ``place``."""
    found[place] = found[place].followed_by(edges) if place in found else edges


def _objects(cuts: Iterable[Cut]) -> NDArray[np.object_]:
    held = list(cuts)
    found = np.empty(len(held), np.object_)
    found[:] = held
    return found
