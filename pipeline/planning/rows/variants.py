"""Which parts of a network run on rows or channels: for less and less memory, the fastest there is.

Between two places pieces run whole or as a region, some rows at a time. A region needs less of the arena
and, as all its weights must be there at once, more of the ring. Each limit of both has a fastest way
through the network (pipeline/planning/rows/ways.py); those that no other beats are the variants.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from math import inf

import numpy as np

from pipeline.planning.row_variant import Variant, Variants
from pipeline.planning.rows.region_edges import RegionEdges, RegionInGroups
from pipeline.planning.rows.region_edges import in_groups as regions_in_groups
from pipeline.planning.rows.walk import EFFORT, Effort, Walk
from pipeline.planning.rows.ways import NO_ARENA, MemoryLimits, Numbers, Way, Ways
from pipeline.planning.rows.whole_pieces import LiveValues, WholePieces
from pipeline.program.lives import Lifetime, joins, lifetimes
from pipeline.program.program import Program
from pipeline.program.region_plan import ChannelCut, Region
from pipeline.program.row_network import RowNetwork
from pipeline.program.shared_memory import roots
from pipeline.program.work import KnownTimes, RowTimes

# Which joined values are better left in parts, and which inputs with the request.
#
# A value that is joined of others (a concatenation) has its memory from its first part on, though the
# others may come much later. Where all its readers are in regions, which take rows of the parts, its
# parts may lie anywhere, each only while it is needed. But then all of them must be in regions.

# Joins that wait for their parts with this part of all bytes that live, over time, are tried together;
# then all.
_WORTH = (0.02, 0.0)


def worth_apart(network: RowNetwork) -> list[frozenset[int]]:
    """Return sets of joined values to try apart: first those that waste most bytes, last all."""
    program, possible = network.program, _read_in_parts(network)
    places = roots(program)
    together = list(map(_byte_moments, lifetimes(program)))
    apart = dict.fromkeys(sorted(possible), 0)
    # What lies in one joined value does not depend on whether others are apart.
    for value, life in enumerate(lifetimes(program, apart=possible)):
        root = places[value][0]
        if root in apart:
            apart[root] += _byte_moments(life)
    kept = {value: together[value] - apart[value] for value in apart}
    sets = [
        frozenset(value for value in kept if kept[value] >= worth * sum(together))
        for worth in _WORTH
    ]
    return [values for values in dict.fromkeys(sets) if values]


def _read_in_parts(network: RowNetwork) -> frozenset[int]:
    """Return the joined values that are not needed whole if all their readers are in regions."""
    program = network.program
    users = _users(program)
    written = {operand.index for piece in program.own_pieces for operand in piece.outputs}
    written |= {port.value for port in (*program.inputs, *program.outputs)}
    return frozenset(
        whole
        for whole, parts in program.made(joins).items()
        if len(parts) > 1 and whole not in written and network.covered >= users.get(whole, set())
    )


def _inputs_in_parts(network: RowNetwork) -> frozenset[int]:
    """Return the inputs that several pieces read, far from each other, and all of them could be in regions.

    Then the request may keep them (patches of an image: each region takes its rows), if all are.
    """
    users = _users(network.program)
    inputs = {port.value: users.get(port.value, set()) for port in network.program.inputs}
    return frozenset(
        value
        for value, readers in inputs.items()
        if len(readers) > 1 and network.covered >= readers
    )


def _users(program: Program) -> dict[int, set[int]]:
    """Return the pieces that read each value."""
    users: dict[int, set[int]] = {}
    for number in program.own:
        for operand in program.pieces[number].inputs:
            if operand.kind == "value":
                users.setdefault(operand.index, set()).add(number)
    return users


def _byte_moments(life: Lifetime) -> int:
    """Return its bytes times the pieces for which it lives."""
    return life.n_bytes * (life.end - life.start)


# Variants, and the search for them.

# A byte of bindings as seconds: nothing for the fastest ways, so much that few are bound for the smallest.
_SECONDS_A_BYTE = (0.0, 2e-8, 1e-6)
# Of so many sizes of scratch, beside any.
_MOST_SCRATCH_SIZES = 3
_ARENAS = 14
# Rings that just hold the weights of regions: of so many of the smallest ways.
_EXACT_RINGS = 6
# The smallest ring that is worth it is found by asking for less and less.
_MOST_DESCENTS = 12
_NO_WORSE = 1.02


def find_variants(
    network: RowNetwork,
    times: RowTimes,
    piece_seconds: Callable[[int], float],
    most: Effort = EFFORT,
    *,
    most_arena: int | None = None,
    in_groups: Sequence[Region] = (),
    into_arena: bool = True,
) -> Variants:
    """Return the variants of a network that no other beats.

    ``times`` of row operators, ``piece_seconds`` of the program's pieces. ``in_groups``: bottlenecks in
    groups of channels, which take longer than whole ones. ``most_arena``: only what needs so many bytes of
    arena and scratch at most, or the least of those if nothing does. ``into_arena``: weights of regions may
    be read into the arena.
    Deterministic, unless the clock ends it.
    """
    apart = [frozenset[int](), *worth_apart(network)]
    kept_inputs = dict.fromkeys((frozenset[int](), _inputs_in_parts(network)))
    searches = [
        _Search(
            network,
            piece_seconds,
            parts,
            inputs,
            most_arena,
            into_arena=into_arena,
        )
        for inputs in kept_inputs
        for parts in apart
    ]
    times = KnownTimes(times)
    regions = [search.regions for search in searches]
    walk = Walk(network, regions, times, most)
    walk.take()
    for found_now in _in_groups(searches, in_groups):
        groups = list(regions_in_groups(network, found_now, times))
        for search in searches:
            search.take_in_groups(groups)
    small = most_arena is not None
    variants = _unbeaten((each for search in searches for each in search.variants()), small)
    return Variants(tuple(variants), walk.effort, walk.complete)


def _in_groups(searches: Sequence["_Search"], regions: Sequence[Region]) -> Iterator[list[Region]]:
    """Yield those of ``regions`` that may be of use, to be taken at once.

    All of a bottleneck that needs as much of the arena whole as the least way, or more: with them that may
    be less, and others count.
    """
    left = {pieces: list(run) for pieces, run in groupby(regions, lambda region: region.pieces)}
    while True:
        least = [search.regions.least_arena() for search in searches]
        needed = [
            pieces
            for pieces in left
            if any(
                search.regions.need(pieces, arena)
                for search, arena in zip(searches, least, strict=True)
            )
        ]
        if not needed:
            return
        yield [region for pieces in needed for region in left.pop(pieces)]


def _unbeaten(variants: Iterable[Variant], small: bool) -> list[Variant]:
    """Return those that are smaller than all faster ones; ``small``: or have less activations."""
    unbeaten: list[Variant] = []
    least = activations = 1 << 62
    for variant in sorted(variants, key=_pace):
        if variant.n_bytes < least or (small and variant.activation_bytes < activations):
            unbeaten.append(variant)
            least = min(least, variant.n_bytes)
            activations = min(activations, variant.activation_bytes)
    return unbeaten


class _Search:
    """Finds ways through a network; what exists only as its parts, ``apart``, none has whole.

    Nor the inputs ``given``, of which regions take rows from the request.
    """

    def __init__(
        self,
        network: RowNetwork,
        piece_seconds: Callable[[int], float],
        apart: frozenset[int] = frozenset(),
        given: frozenset[int] = frozenset(),
        most_arena: int | None = None,
        *,
        into_arena: bool = True,
    ) -> None:
        program = network.program
        self._network = network
        self._places = _places(network)
        live = LiveValues(network, apart, given)
        self._whole = WholePieces(
            program,
            live,
            self._places,
            apart | given,
            piece_seconds,
            only_activations=most_arena is not None,
            into_arena=into_arena,
        )
        self.regions = RegionEdges(
            network, live, self._places, self._whole, apart, given, into_arena=into_arena
        )
        self._graphs_of: dict[tuple[int, int, ChannelCut | None], Numbers] = {}
        self._session_bytes = np.array([graph.session_bytes for graph in program.graphs], np.int64)
        self._most_arena = NO_ARENA if most_arena is None else most_arena

    def take_in_groups(self, found: Iterable[RegionInGroups]) -> None:
        """Take bottlenecks in groups of channels."""
        self.regions.take_in_groups(found)
        for item in found:
            self._graphs_of[_kernels_key(item.region)] = np.array([*item.graphs], np.int64)

    def variants(self) -> Iterator[Variant]:
        """Yield the best way for each of many limits, and what ever tighter ones leave of the smallest."""
        ways = self.regions.ways().worth(max(_SECONDS_A_BYTE))
        pairs = self._found(ways, self._whole.rings)
        pairs += self._found(ways, _exact_rings(pairs))
        smallest = inf
        for _ in range(_MOST_DESCENTS):
            yield from (variant for variant, _ in pairs)
            better, way = min(pairs, key=_size, default=(None, None))
            if better is None or way is None or better.n_bytes > _NO_WORSE * smallest:
                return
            smallest = min(smallest, better.n_bytes)
            if way.ring <= self._whole.rings[0]:
                return
            pairs = self._found(ways, np.array([way.ring - 1], np.int64))

    def _found(self, ways: Ways, rings: Numbers) -> list[tuple[Variant, Way]]:
        return [(self._variant(way), way) for way in self._best(ways, rings)]

    def _best(self, ways: Ways, rings: Numbers) -> list[Way]:
        """Return the best ways of each ring within many arenas and some sizes of scratch, each once."""
        if not len(rings):
            return []
        each = (self._whole.limits(rings, scratch) for scratch in self._whole.scratch_sizes)
        lows = ((limits, ways.least_arena(limits)) for limits in each)
        possible = (item for item in lows if (item[1] <= self._whole.most).any())
        best_ways = (
            self._within(ways, *item) for item in islice(possible, 1 + _MOST_SCRATCH_SIZES)
        )
        return list(dict.fromkeys(chain.from_iterable(best_ways)))

    def _within(self, ways: Ways, limits: MemoryLimits, lows: Numbers) -> list[Way]:
        """Return the best ways within ``limits``, whose least arenas are ``lows``, and many arenas."""
        each = [
            (number, arena, price)
            for number, low in enumerate(lows.tolist())
            if 0 < low <= self._whole.most
            for arena in _arenas(low, self._most_beside(limits, number))
            for price in _SECONDS_A_BYTE
        ]
        if not each:
            return []
        numbers, arenas, prices = (np.array(column) for column in zip(*each, strict=True))
        return ways.best(limits.those(numbers), arenas, prices)

    def _most_beside(self, limits: MemoryLimits, number: int) -> int:
        """Return the largest arena beside the scratch of a limit."""
        whole = int(self._whole.cost.scratch[limits.levels[number]].max(initial=0))
        scratch = min(int(limits.scratch[number]), whole)
        return min(self._whole.most, max(self._most_arena - scratch, 0))

    def _variant(self, way: Way) -> Variant:
        graphs = self._whole.graphs([region.pieces for region in way.regions], way.level)
        for region in way.regions:
            graphs[self._graphs(region)] = True
        session_bytes = int(self._session_bytes[graphs].sum())
        n_bytes = way.arena + way.ring + way.bound + session_bytes + way.scratch
        chunk_bytes = int(self._whole.rings[way.level])
        activations = way.arena + way.scratch
        return Variant(way.regions, n_bytes, way.seconds, chunk_bytes, activations)

    def _graphs(self, region: Region) -> Numbers:
        """Return the graphs of a region's operators."""
        key = _kernels_key(region)
        if key not in self._graphs_of:
            operators = self._network.operators_within(region.pieces)
            items = self._network.operators[operators.start : operators.stop]
            self._graphs_of[key] = np.array([item.graph for item in items], np.int64)
        return self._graphs_of[key]


def _arenas(least: int, most: int) -> list[int]:
    """Return arenas to try, from ``least`` to ``most`` bytes in even ratios; or it alone."""
    if least >= most:
        return [least]
    return [round(least * (most / least) ** (step / (_ARENAS - 1))) for step in range(_ARENAS)]


def _exact_rings(found: Iterable[tuple[Variant, Way]]) -> Numbers:
    """Return rings that just hold the largest weights of a region, where others need less of the ring."""
    sizes = {way.held: variant.n_bytes for variant, way in found if 0 < way.held < way.ring}
    smallest = sorted(sizes, key=lambda held: sizes[held])[:_EXACT_RINGS]
    return np.array(sorted(smallest), np.int64)


def _kernels_key(region: Region) -> tuple[int, int, ChannelCut | None]:
    """Return what the graphs of a region's operators depend on."""
    cut = region.cut
    return region.first_piece, region.end_piece, cut if isinstance(cut, ChannelCut) else None


def _places(network: RowNetwork) -> list[int]:
    """Return the pieces before which a region may begin or end, or that run whole."""
    own = network.program.own
    outside = set(own) - network.covered
    ends = {own.start, own.stop}
    return sorted(network.places | outside | {piece + 1 for piece in outside} | ends)


def _pace(variant: Variant) -> tuple[float, int]:
    return (variant.seconds, variant.n_bytes)


def _size(found: tuple[Variant, Way]) -> tuple[int, float]:
    return (found[0].n_bytes, found[0].seconds)
