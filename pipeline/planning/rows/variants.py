"""Which parts of a network run on rows: for less and less memory, the fastest that there is.

Between two places pieces run whole or as a region, some rows at a time. A region needs less of the arena
and, as all its weights must be there at once, more of the ring. Each limit of both has a fastest way
through the network (pipeline/planning/rows/ways.py); those that no other beats are the variants.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from models.packs.choice import BINDING_BYTES, choose_pieces, chunk_sizes, finest_positions
from models.packs.manifest import Manifest, Piece
from pipeline.planning.rows.live_values import LiveValues
from pipeline.planning.rows.ways import Edges, Numbers, Way, Ways, Whole
from pipeline.planning.sizes_apart import apart
from pipeline.program.lives import joins
from pipeline.program.regions import Region
from pipeline.program.row_network import RowNetwork
from pipeline.program.row_times import RowTimes
from pipeline.program.sketches import Sketch, sketches

#: Operators that are walked over to find regions: while a model loads, and where time is no object.
QUICK_STEPS, ALL_STEPS = 6_000, 120_000
_ROWS = (1, 2, 4, 8, 16, 32)
_ARENAS = 14
_RINGS = 8
_FIRST_ENDS = 10
# Sizes of rings that differ by less are one.
_RATIO = 1.25
# More than any arena: what must not run whole.
_NEVER = 1 << 60
# A byte of bindings as seconds: nothing for the fastest ways, so much that few are bound for the smallest.
_SECONDS_A_BYTE = (0.0, 2e-8, 1e-6)
# The smallest ring that is worth it is found by asking for less and less.
_MOST_DESCENTS = 12
_NO_WORSE = 1.02


@dataclass(frozen=True)
class Variant:
    """``regions`` run on rows, the rest whole, in chunks of up to ``chunk_bytes``; None: as is best.

    ``n_bytes``: of all memory that depends on it, in the smallest plan: arena, ring, scratch, sessions.
    ``seconds``: of all kernels and copies.
    """

    regions: tuple[Region, ...]
    n_bytes: int
    seconds: float
    chunk_bytes: int | None = None


def find_variants(
    manifest: Manifest,
    network: RowNetwork,
    times: RowTimes,
    piece_seconds: Callable[[int], float],
    most_steps: int = ALL_STEPS,
) -> list[Variant]:
    """Return the variants of a network that no other beats, the fastest and largest first.

    ``times`` of row operators, ``piece_seconds`` of the manifest's pieces. Deterministic.
    """
    search = _Search(manifest, network, times, piece_seconds)
    search.walk(most_steps)
    found = list(search.variants())
    apart = _read_in_parts(manifest, network)
    if apart:
        again = _Search(manifest, network, times, piece_seconds, apart)
        again.judge(search.sketched)
        found += again.variants()
    return _unbeaten(found)


def _read_in_parts(manifest: Manifest, network: RowNetwork) -> frozenset[int]:
    """Return the joined values that nobody needs whole if all who read them are in regions."""
    users: dict[int, set[int]] = {}
    for number, piece in enumerate(manifest.pieces):
        for operand in piece.inputs:
            if operand.kind == "value":
                users.setdefault(operand.index, set()).add(number)
    made = {operand.index for piece in manifest.pieces for operand in piece.outputs}
    made |= {port.value for port in (*manifest.inputs, *manifest.outputs)}
    return frozenset(
        whole
        for whole, parts in joins(manifest).items()
        if len(parts) > 1 and whole not in made and network.covered >= users.get(whole, set())
    )


def _unbeaten(variants: Iterable[Variant]) -> list[Variant]:
    """Return those that are smaller than all faster ones."""
    found: list[Variant] = []
    for variant in sorted(variants, key=lambda item: (item.seconds, item.n_bytes)):
        if not found or variant.n_bytes < found[-1].n_bytes:
            found.append(variant)
    return found


class _Search:
    def __init__(
        self,
        manifest: Manifest,
        network: RowNetwork,
        times: RowTimes,
        piece_seconds: Callable[[int], float],
        apart: frozenset[int] = frozenset(),
    ) -> None:
        self._apart = apart
        #: By the place where they end.
        self.sketched: dict[int, list[Sketch]] = {}
        self._manifest = manifest
        self._network = network
        self._times = times
        self._live = LiveValues(manifest, network, apart)
        outside = set(range(len(manifest.pieces))) - network.covered
        ends = {0, len(manifest.pieces)}
        self._places = sorted(network.places | outside | {piece + 1 for piece in outside} | ends)
        self._numbers = {place: number for number, place in enumerate(self._places)}
        self._edges: dict[int, Edges] = {}
        self._whole = self._run_whole(piece_seconds)

    def variants(self) -> Iterator[Variant]:
        """Yield the best way for each of many limits, and what ever tighter ones leave of the smallest."""
        ways = Ways(self._places, self._whole, self._edges)
        found = {self._variant(way): way for way in self._best(ways, self._rings)}
        yield from found
        if not found:
            return
        smallest = min(found, key=_size)
        ring = found[smallest].ring
        for _ in range(_MOST_DESCENTS):
            tighter = np.array([ring - 1], np.int64)
            if tighter[0] < self._rings[0]:
                return
            found = {self._variant(way): way for way in self._best(ways, tighter)}
            yield from found
            better = min(found, key=_size, default=None)
            if better is None or better.n_bytes > _NO_WORSE * smallest.n_bytes:
                return
            smallest, ring = min(smallest, better, key=_size), found[better].ring

    def _best(self, ways: Ways, rings: Numbers) -> list[Way]:
        """Return the best ways of each ring within many arenas, each once."""
        levels = np.searchsorted(self._rings, rings, side="right") - 1
        most = self._most
        limits = [
            (ring, level, round(low * (most / low) ** (step / (_ARENAS - 1))), price)
            for ring, level, low in zip(rings, levels, ways.least_arena(rings), strict=True)
            for step in range(_ARENAS)
            if 0 < low <= most
            for price in _SECONDS_A_BYTE
        ]
        if not limits:
            return []
        found = ways.best(*(np.array(column) for column in zip(*limits, strict=True)))
        return list(dict.fromkeys(found))

    def walk(self, most_steps: int) -> None:
        """Sketch regions until so many operators were walked over, those that divide most first."""
        ends = self._by_prominence()
        steps = 0
        for ends_now in (ends[:_FIRST_ENDS], ends[_FIRST_ENDS:]):
            largest = self._useful_weights()
            for end in ends_now:
                starts = self._starts(end, largest)
                if not starts or steps >= most_steps:
                    continue
                first = self._network.operators_before(starts[0])
                steps += self._network.operators_before(end) - first
                found = list(sketches(self._network, end, starts, _ROWS, self._times))
                self.judge({end: found})

    def judge(self, sketched: Mapping[int, list[Sketch]]) -> None:
        """Take the regions of sketches, by the place where they end."""
        for end, found in sketched.items():
            self.sketched[end] = found
            edges = self._judged(found)
            if edges is not None:
                self._edges[self._numbers[end]] = edges

    def _useful_weights(self) -> int:
        """Return the most weights of a region that can be worth it: less than all that is needed now."""
        ways = Ways(self._places, self._whole, self._edges)
        return int((ways.least_arena(self._rings) + self._rings).min())

    def _starts(self, end: int, largest: int) -> list[int]:
        """Return where a region that ends at ``end`` may begin."""
        run = next(run for run in self._network.runs if run.start < end <= run.stop)
        return [
            place
            for place in self._places
            if run.start <= place < end and self._live.weights(place, end) < largest
        ]

    def _by_prominence(self) -> list[int]:
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

    def _judged(self, found: Iterable[Sketch]) -> Edges | None:
        """Return what of the sketches is worth a thought."""
        most = self._most
        starts, rows, arena, ring, bound, seconds = [], [], [], [], [], []
        for sketch in found:
            if self._apart & {self._network.values[number].value for number in sketch.touched}:
                continue  # it would be there whole
            beside = self._live.beside(sketch.first_piece, sketch.end_piece, sketch.touched)
            weights = self._live.weights(sketch.first_piece, sketch.end_piece)
            for number, each in enumerate(sketch.rows):
                n_bytes = beside + int(sketch.strip_bytes[number] - sketch.shared_bytes[number])
                if n_bytes < most:
                    starts.append(self._numbers[sketch.first_piece])
                    rows.append(each)
                    arena.append(n_bytes)
                    ring.append(weights)
                    bound.append(int(sketch.binding_bytes[number]))
                    seconds.append(float(sketch.seconds[number]))
        if not starts:
            return None
        start, row, live, weight, bindings = np.array([starts, rows, arena, ring, bound], np.int64)
        return Edges(start, row, live, weight, bindings, np.array(seconds))

    # What runs whole

    @cached_property
    def _most(self) -> int:
        """The most memory that is worth a thought: where everything runs whole."""
        return max(self._live.live, default=0)

    @cached_property
    def _rings(self) -> Numbers:
        """The rings that are tried: from the largest chunk in even ratios to what no plan needs."""
        least = max(self._manifest.largest_chunk_bytes, 1)
        most = max(
            min(max(self._live.live, default=0), sum(s.length for s in self._manifest.spans)), least
        )
        known = {size for size in chunk_sizes(self._manifest) if least <= size <= most}
        ladder = {round(least * (most / least) ** (step / (_RINGS - 1))) for step in range(_RINGS)}
        return np.array(apart(sorted(known | ladder | {least}), _RATIO), np.int64)

    @cached_property
    def _pieces(self) -> list[list[tuple[Piece, range]]]:
        """For each ring the pieces that run where everything is whole."""
        chosen = [choose_pieces(self._manifest, int(ring)) for ring in self._rings]
        return [list(zip(pieces, finest_positions(pieces), strict=True)) for pieces in chosen]

    def _run_whole(self, piece_seconds: Callable[[int], float]) -> Whole:
        spans, live = self._manifest.spans, self._live.live
        between = list(pairwise(self._places))
        ring = np.zeros((len(self._rings), len(between)), np.int64)
        bound = np.zeros_like(ring)
        numbers = [number for number, (start, end) in enumerate(between) for _ in range(start, end)]
        for level, pieces in enumerate(self._pieces):
            for piece, positions in pieces:
                number = numbers[positions.start]
                bound[level, number] += BINDING_BYTES
                if piece.span is not None and not spans[piece.span].resident:
                    held = sum(s.length for s in spans[piece.span : piece.span + piece.n_spans])
                    ring[level, number] = max(ring[level, number], held)
        arena = np.array([max(live[start:end]) for start, end in between], np.int64)
        for piece, number in zip(self._manifest.pieces, numbers, strict=True):
            if any(item.kind == "value" and item.index in self._apart for item in piece.inputs):
                arena[number] = _NEVER
        return Whole(
            arena,
            ring,
            bound,
            np.array([sum(map(piece_seconds, range(start, end))) for start, end in between]),
        )

    def _variant(self, way: Way) -> Variant:
        inside = {piece for region in way.regions for piece in region.pieces}
        pieces = [piece for piece, at in self._pieces[way.level] if at.start not in inside]
        graphs = {piece.graph for piece in pieces}
        graphs |= {item.graph for item in self._network.operators if item.first_piece in inside}
        held = sum(self._manifest.graphs[number].session_bytes for number in graphs)
        scratch = max((piece.scratch_bytes for piece in pieces), default=0)
        n_bytes = way.arena + way.ring + way.bound + held + scratch
        return Variant(way.regions, n_bytes, way.seconds, int(self._rings[way.level]))


def _size(variant: Variant) -> tuple[int, float]:
    return (variant.n_bytes, variant.seconds)
