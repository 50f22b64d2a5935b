"""Regions as edges between places of a network: where they begin and end, and what sketches say of them."""

from collections.abc import Iterable, Sequence

import numpy as np

from pipeline.planning.rows.live_values import LiveValues
from pipeline.planning.rows.ways import Edges
from pipeline.program.row_network import RowNetwork
from pipeline.program.sketching.sketches import Sketch
from pipeline.program.steps import STEP_BYTES


class RegionEdges:
    """Those between ``places`` that need less than ``most`` bytes of an arena.

    ``edges``: by the number of the place where they end. What exists only as its parts, ``apart``, none may
    have whole.
    """

    def __init__(
        self,
        network: RowNetwork,
        live: LiveValues,
        places: Sequence[int],
        most: int,
        apart: frozenset[int],
    ) -> None:
        self.edges: dict[int, Edges] = {}
        self._network = network
        self._live = live
        self._places = places
        self._numbers = {place: number for number, place in enumerate(places)}
        self._most = most
        self._apart = apart

    def take(self, end: int, found: Iterable[Sketch]) -> None:
        """Take the regions of sketches that end at ``end``."""
        edges = self._judged(found)
        if edges is not None:
            self.edges[self._numbers[end]] = edges

    def starts(self, end: int, most_weights: int) -> list[int]:
        """Return where a region that ends at ``end`` may begin, with less than so many bytes of weights."""
        run = next(run for run in self._network.runs if run.start < end <= run.stop)
        return [
            place
            for place in self._places
            if run.start <= place < end and self._live.weights(place, end) < most_weights
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

    def _judged(self, found: Iterable[Sketch]) -> Edges | None:
        """Return what of the sketches is worth a thought."""
        starts, rows, arena, ring, bound, seconds = [], [], [], [], [], []
        for sketch in found:
            if self._apart & {self._network.values[number].value for number in sketch.touched}:
                continue  # it would be there whole
            beside = self._live.beside(sketch.first_piece, sketch.end_piece, sketch.touched)
            weights = self._live.weights(sketch.first_piece, sketch.end_piece)
            for number, each in enumerate(sketch.rows):
                n_bytes = beside + int(sketch.strip_bytes[number] - sketch.shared_bytes[number])
                if n_bytes < self._most:
                    starts.append(self._numbers[sketch.first_piece])
                    rows.append(each)
                    arena.append(n_bytes)
                    ring.append(weights)
                    phases = -(-self._height(sketch.end_piece) // each)
                    bound.append(int(sketch.binding_bytes[number]) + phases * STEP_BYTES)
                    seconds.append(float(sketch.seconds[number]))
        if not starts:
            return None
        start, row, live, weight, bindings = np.array([starts, rows, arena, ring, bound], np.int64)
        return Edges(start, row, live, weight, bindings, np.array(seconds))
