"""Which parts of a network run on rows: for less and less memory, the fastest that there is.

Between two *cuts*, places where little has to be kept, pieces run whole or as a region, some rows at a
time. Both need memory for activations and, a region, for all its weights at once; both take their time.
For a limit of that memory the fastest sequence is a shortest path over the cuts (dynamic programming);
limits from the least that any path needs to that of the whole network give the variants to choose from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from models.packs.manifest import Manifest
from pipeline.program.lives import Lifetime, lifetimes
from pipeline.program.regions import Region, RegionError, plan_region
from pipeline.program.row_network import RowNetwork
from pipeline.program.row_times import RowTimes, region_seconds
from pipeline.program.shared_memory import roots

#: Cuts that are considered: for a plan while a model loads, and for one that may take its time.
QUICK_CUTS, ALL_CUTS = 12, 28
_ROWS = (1, 2, 4, 8, 16, 32)
_LIMITS = 16
# More phases than this are many launches for little memory.
_MOST_PHASES = 160


@dataclass(frozen=True)
class Variant:
    """``regions`` run on rows, the rest whole.

    ``n_bytes``: of activations and the weights of a region, at their fullest. ``seconds``: of all kernels
    and copies.
    """

    regions: tuple[Region, ...]
    n_bytes: int
    seconds: float


@dataclass(frozen=True)
class _Edge:
    """One way from a cut to a later one."""

    end: int
    n_bytes: int
    seconds: float
    region: Region | None = None


def find_variants(
    manifest: Manifest,
    network: RowNetwork,
    times: RowTimes,
    piece_seconds: Callable[[int], float],
    most_cuts: int = ALL_CUTS,
) -> list[Variant]:
    """Return variants of a network, the whole one first, each with less memory than the one before.

    ``times`` of row operators, ``piece_seconds`` of the manifest's pieces. Deterministic.
    """
    graph = _Graph(manifest, network, times, piece_seconds, most_cuts)
    whole = Variant((), graph.whole_bytes, sum(map(piece_seconds, range(len(manifest.pieces)))))
    least = graph.least_bytes()
    if least >= whole.n_bytes:
        return [whole]
    ratio = (least / whole.n_bytes) ** (1 / (_LIMITS - 1))
    limits = [round(whole.n_bytes * ratio**step) for step in range(_LIMITS - 1)]
    found = [whole]
    for limit in (*limits, least):
        variant = graph.fastest(limit)
        if variant is not None and variant.n_bytes < found[-1].n_bytes:
            found.append(variant)
    return found


class _Graph:
    """The cuts, and all ways between them."""

    def __init__(
        self,
        manifest: Manifest,
        network: RowNetwork,
        times: RowTimes,
        piece_seconds: Callable[[int], float],
        most_cuts: int,
    ) -> None:
        self._manifest = manifest
        self._network = network
        self._times = times
        self._piece_seconds = piece_seconds
        self._cuts = _cuts(network, self._crossing, most_cuts)

    @cached_property
    def whole_bytes(self) -> int:
        return max(self._live, default=0)

    def least_bytes(self) -> int:
        """Return the least memory that any path needs at its fullest."""
        least = dict.fromkeys(self._cuts, 1 << 62)
        least[self._cuts[0]] = 0
        for cut in self._cuts[:-1]:
            for edge in self._edges[cut]:
                least[edge.end] = min(least[edge.end], max(least[cut], edge.n_bytes))
        return least[self._cuts[-1]]

    def fastest(self, limit: int) -> Variant | None:
        """Return the fastest path that never needs more than ``limit`` bytes."""
        best: dict[int, tuple[float, int, tuple[Region, ...]]] = {self._cuts[0]: (0.0, 0, ())}
        for cut in self._cuts[:-1]:
            if cut not in best:
                continue
            seconds, n_bytes, regions = best[cut]
            for edge in self._edges[cut]:
                if edge.n_bytes > limit:
                    continue
                took = seconds + edge.seconds
                if edge.end not in best or took < best[edge.end][0]:
                    added = () if edge.region is None else (edge.region,)
                    best[edge.end] = (took, max(n_bytes, edge.n_bytes), (*regions, *added))
        found = best.get(self._cuts[-1])
        return None if found is None else Variant(found[2], found[1], found[0])

    @cached_property
    def _edges(self) -> dict[int, list[_Edge]]:
        """All ways from each cut: whole to the next one, on rows to any later one."""
        edges: dict[int, list[_Edge]] = {}
        for position, (cut, following) in enumerate(pairwise(self._cuts)):
            edges[cut] = [self._whole(cut, following)]
            for end in self._cuts[position + 1 :]:
                if not self._network.covered.issuperset(range(cut, end)):
                    break
                edges[cut].extend(self._on_rows(cut, end))
        return edges

    def _whole(self, start: int, end: int) -> _Edge:
        seconds = sum(map(self._piece_seconds, range(start, end)))
        return _Edge(end, max(self._live[start:end]), seconds)

    def _on_rows(self, start: int, end: int) -> list[_Edge]:
        """Return regions of the pieces [start, end), from few rows to many."""
        operators = self._network.within(range(start, end))
        if operators is None:
            return []
        height = self._network.values[self._network.operators[operators[-1]].output].height
        beside = self._beside(start, end)
        weights = self._weights(start, end)
        found: list[_Edge] = []
        for rows in _ROWS:
            if rows > height or height > rows * _MOST_PHASES:
                continue
            region = Region(start, end, rows)
            try:
                plan = plan_region(self._network, region, sketch=True)
            except RegionError:
                continue  # with more rows less is read after it was overwritten
            n_bytes = beside(plan.read | plan.written) + plan.live_bytes() + weights
            if n_bytes >= self.whole_bytes:
                break
            seconds = region_seconds(self._network, plan, self._times)
            found.append(_Edge(end, n_bytes, seconds, region))
        return found

    def _weights(self, start: int, end: int) -> int:
        pieces = self._manifest.pieces[start:end]
        spans = {piece.span for piece in pieces if piece.span is not None}
        return sum(self._manifest.spans[span].length for span in spans)

    @cached_property
    def _lives(self) -> Sequence[Lifetime]:
        return lifetimes(self._manifest)

    @cached_property
    def _live(self) -> list[int]:
        """Bytes in use while each piece runs."""
        return self._sums(lambda life: (life.start, life.end))

    @cached_property
    def _crossing(self) -> list[int]:
        """Bytes that are kept between piece i - 1 and piece i."""
        return self._sums(lambda life: (life.start + 1, life.end))

    def _sums(self, when: Callable[[Lifetime], tuple[int, int]]) -> list[int]:
        count = len(self._manifest.pieces)
        changes = [0] * (count + 3)
        for life in self._lives:
            start, end = when(life)
            if start < end:
                changes[start] += life.n_bytes
                changes[end] -= life.n_bytes
        total, sums = 0, []
        for change in changes[: count + 1]:
            total += change
            sums.append(total)
        return sums

    def _beside(self, start: int, end: int) -> Callable[[frozenset[int]], int]:
        """Return what tells the bytes of whole values that live while a region runs.

        It is given the row values that the region reads or writes whole.
        """
        through = {
            index
            for index, life in enumerate(self._lives)
            if life.start < start and life.end > end and life.n_bytes
        }
        places = self._roots
        inputs = {port.value for port in self._manifest.inputs}
        after = self._network.read_after(end)

        def beside(touched: frozenset[int]) -> int:
            values = {self._network.values[number].value for number in touched}
            # Rows of an input come from the request, unless others read it later.
            whole = {places[value] for value in values if value not in inputs or value in after}
            return sum(self._lives[root].n_bytes for root in through | whole)

        return beside

    @cached_property
    def _roots(self) -> list[int]:
        return [root for root, _ in roots(self._manifest)]


def _cuts(network: RowNetwork, crossing: Sequence[int], most: int) -> list[int]:
    """Return where regions may begin and end, and all pieces that never are in one; the last is the end."""
    count = len(network.manifest.pieces)
    inner: list[int] = []
    always = {0, count}
    for run in network.runs:
        always |= {run.start, run.stop}
        starts = {
            network.operators[number].first_piece for number in range(len(network.operators))
        } & set(run)
        places = sorted(starts - {run.start})
        inner += [
            place
            for before, place, after in zip(
                [run.start, *places[:-1]], places, [*places[1:], run.stop], strict=False
            )
            if crossing[place] <= min(crossing[before], crossing[after])
        ]
    chosen = sorted(inner, key=lambda place: (crossing[place], place))[: max(most - 2, 0)]
    outside = set(range(count)) - network.covered
    return sorted(always | set(chosen) | outside)
