"""Buffers of layers that process their data by parts, in closed form (seed 000, Sections 2.5 and 6.1).

Layers by parts that follow each other are a *run*: they fire in turns (schedule.py), in one step of their
partition's schedule, and an edge inside holds a few rows. Every other edge holds its whole tensor.

How far a layer runs ahead depends on what lies between it and the layer that all its paths come together
in. So rows are counted by the phases of that layer, and known for as long as the genes in between stay.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from papers.applications.application import ApplicationError
from papers.applications.schedule import WHOLE, done, made, needed, phases, sink_rows
from papers.cnn.layers import Cnn, Edge

_MOST_NUMBERS = 2_000_000
# A key, a tuple and their place in a table take as much as so many numbers more.
_BESIDE = 32


class CountCache:
    """Tuples of numbers by what they depend on: about 20 MB at most, then all are counted anew."""

    def __init__(self, most_numbers: int = _MOST_NUMBERS) -> None:
        self._most = most_numbers
        self._numbers = 0
        self._found: dict[Hashable, tuple[int, ...]] = {}

    def get(self, key: Hashable) -> tuple[int, ...] | None:
        """Return what is known; None: nothing."""
        return self._found.get(key)

    def keep(self, key: Hashable, numbers: tuple[int, ...]) -> None:
        """Remember ``numbers``; where there is no room, all others are forgotten."""
        self._numbers += len(numbers) + _BESIDE
        if self._numbers > self._most:
            self._found.clear()
            self._numbers = len(numbers) + _BESIDE
        self._found[key] = numbers


# Phases are listed; a pack or a file may say any height.
_MOST_ROWS = 1 << 21


@dataclass(frozen=True, slots=True)
class LayerRun:
    """The layers at places [start, end) of a partition's order: one step."""

    start: int
    end: int
    by_parts: bool


class PartitionParts:
    """One partition: ``order`` of its layers in ``cnn``. Genes are rows at a time, one a place.

    Raises:
        ApplicationError: its layers make more rows than can be gone through.
    """

    def __init__(self, cnn: Cnn, order: Sequence[int]) -> None:
        self.cnn, self.order = cnn, tuple(order)
        self._place = {layer: place for place, layer in enumerate(self.order)}
        layers = [cnn.layers[layer] for layer in self.order]
        self._heights = [layer.output.height for layer in layers]
        if sum(self._heights) > _MOST_ROWS:
            raise ApplicationError(
                f"{cnn.name}: {sum(self._heights):,} rows in all layers, more than {_MOST_ROWS:,}"
            )
        self.readers = [
            [self._place[reader] for reader in cnn.readers[layer] if reader in self._place]
            for layer in self.order
        ]
        self._edges = {(edge.source, edge.target): edge for edge in cnn.edges}
        self._known = CountCache()
        self._ends_known = CountCache()
        self._reached: dict[tuple[int, int], list[int]] = {}

    @cached_property
    def _meetings(self) -> list[int]:
        """For each place the nearest that all paths from it lead through; the end where there is none."""
        end = len(self.order)
        found = [end] * end
        for place in range(end - 1, -1, -1):
            meeting: int | None = None
            for reader in self.readers[place]:
                meeting = reader if meeting is None else self._common(found, meeting, reader)
            found[place] = end if meeting is None else meeting
        return found

    @staticmethod
    def _common(found: Sequence[int], one: int, other: int) -> int:
        while one != other:
            one, other = (found[one], other) if one < other else (one, found[other])
        return one

    def runs(self, genes: Sequence[int]) -> list[LayerRun]:
        """Return the steps: layers that make all at once, and runs of those by parts."""
        found: list[LayerRun] = []
        start = 0
        for place, rows in enumerate(genes):
            if rows == WHOLE or self._heights[place] <= rows:
                if start < place:
                    found.append(LayerRun(start, place, True))
                found.append(LayerRun(place, place + 1, False))
                start = place + 1
        if start < len(genes):
            found.append(LayerRun(start, len(genes), True))
        return found

    def held_rows(self, run: LayerRun, genes: tuple[int, ...]) -> dict[tuple[int, int], int]:
        """Return the most rows on each edge inside ``run``, by the places of its ends."""
        most_rows: dict[tuple[int, int], int] = {}
        rounds = -1
        for place in range(run.start, run.end):
            readers = [reader for reader in self.readers[place] if reader < run.end]
            if not readers:
                continue
            meeting = self._meetings[place]
            if meeting < run.end:
                key = (place, meeting, 0, bytes(genes[place : meeting + 1]))
            else:
                if rounds < 0:
                    rounds = self._rounds(run, genes)
                key = (place, run.end, rounds, bytes(genes[place : run.end]))
            rows = self._known.get(key)
            if rows is None:
                rows = self._count(place, min(meeting, run.end), run.end, rounds, genes, readers)
                self._known.keep(key, rows)
            for reader, most in zip(readers, rows, strict=True):
                most_rows[place, reader] = most
        return most_rows

    def _rounds(self, run: LayerRun, genes: Sequence[int]) -> int:
        """Return how often the schedule goes round: as often as its last layers with most phases fire."""
        return max(
            phases(self.cnn.layers[self.order[place]], genes[place])
            for place in range(run.start, run.end)
            if not any(reader < run.end for reader in self.readers[place])
        )

    def _count(
        self,
        place: int,
        meeting: int,
        end: int,
        rounds: int,
        genes: Sequence[int],
        readers: Sequence[int],
    ) -> tuple[int, ...]:
        """Return the most rows that ``place`` holds for each of its ``readers``.

        ``meeting``: whose phases are counted; ``end``: the end of the run, where nothing meets in it.
        """
        ends: dict[int, tuple[int, ...]] = {}
        last = min(meeting + 1, end)
        for each in reversed(self._after(place, meeting, end)):
            # What lies between a place and the meeting decides, whichever place it is counted for.
            key = (each, last, rounds if meeting == end else 0, bytes(genes[each:last]))
            known = self._ends_known.get(key)
            if known is None:
                known = tuple(self._ends(each, meeting, end, rounds, genes, ends))
                self._ends_known.keep(key, known)
            ends[each] = known
        own = ends[place]
        most = []
        for reader in readers:
            edge = self._edge(place, reader)
            before = (0, *ends[reader][:-1])
            most.append(
                max(
                    rows - done(self.cnn, edge, earlier)
                    for rows, earlier in zip(own, before, strict=True)
                )
            )
        return tuple(most)

    def _edge(self, place: int, reader: int) -> Edge:
        return self._edges[self.order[place], self.order[reader]]

    def _after(self, place: int, meeting: int, end: int) -> list[int]:
        """Return the places from ``place`` to its meeting, or the end of the run, that it leads to."""
        last = min(meeting + 1, end)
        if (place, last) in self._reached:
            return self._reached[place, last]
        reached = {place}
        for each in range(place, last):
            if each in reached and each != meeting:
                reached.update(reader for reader in self.readers[each] if reader < last)
        return self._reached.setdefault((place, last), sorted(reached))

    def _ends(
        self,
        place: int,
        meeting: int,
        end: int,
        rounds: int,
        genes: Sequence[int],
        ends: Mapping[int, Sequence[int]],
    ) -> list[int]:
        """Return how many rows ``place`` has made after each phase of the meeting, or each round."""
        layer, rows = self.cnn.layers[self.order[place]], genes[place]
        if place == meeting:
            height = layer.output.height
            return [min(n * rows, height) for n in range(1, phases(layer, rows) + 1)]
        asked = [reader for reader in self.readers[place] if reader in ends]
        if not asked:
            number = self.order[place]
            return [sink_rows(self.cnn, number, rows, n, rounds) for n in range(1, rounds + 1)]
        wanted = [
            [needed(self.cnn, self._edge(place, each), n) for n in ends[each]] for each in asked
        ]
        return [made(layer, rows, max(several)) for several in zip(*wanted, strict=True)]
