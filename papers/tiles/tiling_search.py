"""Which configuration to take: seed 002's Algorithm 3, and a search of all cuts and many tilings.

Algorithm 3 tries one or two groups of square tilings, those with the fewest tiles first, and takes the
first that fits. The wider search has any number of groups: memory is the most that one of them needs,
time the sum of all, so for each limit the best way through the layers is found by dynamic programming.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from papers.tiles.fused_groups import FusedGroup, FusedLayer, TileConfiguration, Tiling
from papers.tiles.predictor import GroupBoxes, group_bytes, weight_bytes

_CUTS = (12, 8)
_SIDES = (1, 2, 3, 4, 5)
#: What the wider search tries: tiles that reuse what others made.
WIDE_TILINGS = tuple(Tiling(down, across, "raster") for down, across in product(_SIDES, repeat=2))
_SECOND = Tiling(2, 2)
_MANY_TILES, _LATE_CUT = 2, 12


def paper_search(
    layers: Sequence[FusedLayer], limit_bytes: int, predicted: Callable[[TileConfiguration], int]
) -> TileConfiguration:
    """Return what Algorithm 3 takes for ``limit_bytes``; where nothing fits, the most even: 5x5/8/2x2."""
    for candidate in paper_candidates(len(layers)):
        if predicted(candidate) < limit_bytes:
            return candidate
    return _two_groups(_SIDES[-1], _CUTS[-1], len(layers))


def paper_candidates(count: int) -> Iterator[TileConfiguration]:
    """Yield the configurations of ``count`` layers that Algorithm 3 tries, in its order; 16 in the paper.

    A cut behind the last layer is none.
    """
    for cut, side in product((count, *(cut for cut in _CUTS if cut < count)), _SIDES):
        if cut < _LATE_CUT or side <= _MANY_TILES:
            yield _two_groups(side, cut, count)


def _two_groups(side: int, cut: int, count: int) -> TileConfiguration:
    tiling = Tiling(side, side)
    if cut >= count:
        return TileConfiguration((FusedGroup(0, count, tiling),))
    return TileConfiguration((FusedGroup(0, cut, tiling), FusedGroup(cut, count, _SECOND)))


@dataclass(frozen=True)
class MachineSpeed:
    """How fast a machine is, about: only proportions decide."""

    macs_a_second: float = 100e9
    call_seconds: float = 30e-6
    copied_bytes_a_second: float = 6e9


@dataclass(frozen=True, slots=True)
class Priced:
    """A group, the arena and the weights that it needs, and about how long it takes."""

    group: FusedGroup
    arena_bytes: int
    weight_bytes: int
    seconds: float


class WideSearch:
    """Searches all groups of ``layers`` that begin and end anywhere, each on one of ``tilings``."""

    def __init__(
        self,
        layers: tuple[FusedLayer, ...],
        tilings: Iterable[Tiling] = WIDE_TILINGS,
        pace: MachineSpeed | None = None,
    ) -> None:
        self._layers = layers
        self._tilings = tuple(tilings)
        self._pace = pace or MachineSpeed()
        self._priced = [list(self._ending(end)) for end in range(1, len(layers) + 1)]

    def find(self, limit_bytes: int, bias_bytes: int) -> TileConfiguration | None:
        """Return the fastest configuration that takes less than ``limit_bytes``; None: there is none."""
        room = limit_bytes - bias_bytes
        weights = sorted({item.weight_bytes for found in self._priced for item in found})
        ways = [self._way(room - most, most) for most in weights if most < room]
        found = [way for way in ways if way is not None]
        return min(found, key=lambda way: way[0])[1] if found else None

    def _way(self, arena_bytes: int, most_weights: int) -> tuple[float, TileConfiguration] | None:
        """Return the fastest way whose groups take less arena, and no more weights."""
        best: list[tuple[float, tuple[FusedGroup, ...]] | None] = [(0.0, ())]
        for found in self._priced:
            ways = [
                (before[0] + item.seconds, (*before[1], item.group))
                for item in found
                if item.arena_bytes < arena_bytes and item.weight_bytes <= most_weights
                for before in (best[item.group.first],)
                if before is not None
            ]
            best.append(min(ways, key=lambda way: way[0], default=None))
        last = best[-1]
        return None if last is None else (last[0], TileConfiguration(_merged(last[1])))

    def _ending(self, end: int) -> Iterator[Priced]:
        for first, tiling in product(range(end), self._tilings):
            group = FusedGroup(first, end, tiling)
            # Whole layers are groups of one, which are joined at the end.
            if not tiling.is_whole or end == first + 1:
                yield Priced(
                    group,
                    group_bytes(self._layers, group),
                    weight_bytes(self._layers, group),
                    self._seconds(group),
                )

    def _seconds(self, group: FusedGroup) -> float:
        boxes, pace = GroupBoxes(self._layers, group), self._pace
        seconds = boxes.macs / pace.macs_a_second + pace.call_seconds * boxes.calls
        if not group.tiling.is_whole:
            seconds += boxes.copied_bytes / pace.copied_bytes_a_second
        return seconds


def _merged(groups: Sequence[FusedGroup]) -> tuple[FusedGroup, ...]:
    """Return ``groups`` with whole layers that follow each other in one."""
    found: list[FusedGroup] = []
    for group in groups:
        if found and found[-1].tiling.is_whole and group.tiling.is_whole:
            found[-1] = FusedGroup(found[-1].first, group.end, group.tiling)
        else:
            found.append(group)
    return tuple(found)
