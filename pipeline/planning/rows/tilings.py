"""Regions of the best ways on tiles instead of rows: which are worth a plan, and what they take.

Sketches know rows only, so each is planned exactly, and few are. What a profile says of tiles beside rows
is wrong: by the noise of both, and between the sizes that it measured (docs/tiles.md). So tiles count with
all of that on top of what they take, and are taken where they are faster even so.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from pipeline.planning.rows.exact_regions import ExactRegion
from pipeline.program.regions import Region, RegionError, Reuse, plan_region
from pipeline.program.row_network import RowNetwork
from pipeline.program.row_times import RowTimes, phase_seconds
from pipeline.program.sketching.sketches import MOST_PHASES
from pipeline.program.stopping import go_on

#: Of what tiles take by a profile without noise: so much more they may take, beside rows.
DOUBT = 0.1
# So many times the rows of a region, its columns in so many parts, and whether overlaps are made again.
_KINDS: tuple[tuple[int, int, Reuse], ...] = (
    (2, 2, "raster"),
    (1, 2, "raster"),
    (4, 4, "raster"),
    (2, 2, "none"),
)
# Tiles take at least the memory of rows of this part of their elements, so they must be faster than these.
_PART_OF_ELEMENTS = 2

#: Seconds of a region on rows; None: nobody thought of it.
SecondsOnRows = Callable[[Region], float | None]


def tiled_regions(network: RowNetwork, region: Region) -> Iterator[Region]:
    """Yield what ``region``, which runs on rows, may be on tiles, of no more phases than make sense."""
    _, _, height, width = _last_shape(network, region)
    for times, parts, reuse in _KINDS:
        rows, columns = times * region.rows, -(-width // parts)
        tiled = replace(region, rows=rows, columns=columns, reuse=reuse)
        if rows <= height and columns < width and _count(network, tiled) <= MOST_PHASES:
            yield tiled


def _last_shape(network: RowNetwork, region: Region) -> tuple[int, ...]:
    """Return the shape of what the last operator of ``region`` makes."""
    last = network.operators[network.operators_within(region.pieces)[-1]]
    return network.values[last.output].shape


def _count(network: RowNetwork, region: Region) -> int:
    """Return how many tiles there are."""
    _, _, height, width = _last_shape(network, region)
    return -(-height // region.rows) * -(-width // (region.columns or width))


def _rows_of_as_many(network: RowNetwork, region: Region) -> int:
    """Return about how many whole rows have as many elements as a tile."""
    width = _last_shape(network, region)[3]
    return region.rows * (region.columns or width) // width


class Tilings:
    """Plans regions on tiles, until ``most_work`` operators of tiles were looked at.

    ``usual`` times, and those that tiles hardly exceed, ``most``.
    """

    def __init__(
        self, network: RowNetwork, usual: RowTimes, most: RowTimes, most_work: int
    ) -> None:
        self._network = network
        self._usual = usual
        self._most = most
        self._left = most_work
        self._planned: dict[Region, ExactRegion | None] = {}

    def instead_of(self, region: Region, on_rows: SecondsOnRows) -> Iterator[ExactRegion]:
        """Yield what may be faster than ``region``, which runs on rows, or than fewer rows of it."""
        for tiled in tiled_regions(self._network, region):
            fewer = max(_rows_of_as_many(self._network, tiled) // _PART_OF_ELEMENTS, 1)
            most = on_rows(replace(region, rows=fewer)) or on_rows(region)
            if most is None or self._kernels(tiled) < most:
                found = self._plan(tiled)
                if found is not None:
                    yield found

    def _kernels(self, region: Region) -> float:
        """Return what kernels of ``region`` count as if no overlap was made again."""
        _, _, height, width = _last_shape(self._network, region)
        assert region.columns is not None
        usual = most = 0.0
        for number in self._network.operators_within(region.pieces):
            _, _, rows, columns = self._network.values[self._network.operators[number].output].shape
            each = -(-rows * region.rows // height), -(-columns * region.columns // width)
            usual += self._usual.call(number, *each)
            most += self._most.call(number, *each)
        return _count(self._network, region) * _doubted(usual, most)

    def _plan(self, region: Region) -> ExactRegion | None:
        """Return what ``region`` takes; None: it cannot run, or enough was looked at."""
        if region not in self._planned:
            operators = self._network.operators_within(region.pieces)
            self._left -= _count(self._network, region) * len(operators)
            if self._left < 0:
                return None
            go_on()
            self._planned[region] = self._taken(region)
        return self._planned[region]

    def _taken(self, region: Region) -> ExactRegion | None:
        try:
            plan = plan_region(self._network, region)
        except RegionError:
            return None
        usual, most = (
            sum(phase_seconds(self._network, plan, times)) for times in (self._usual, self._most)
        )
        seconds = _doubted(usual, most)
        return ExactRegion.of(self._network, plan, seconds, seconds - usual)


def _doubted(usual: float, most: float) -> float:
    """Return what ``usual`` seconds of tiles count, which hardly exceed ``most``.

    Rows were measured beside them: their noise is as large, and may have made them look slower.
    """
    return (1 + DOUBT) * usual + 2 * max(most - usual, 0.0)
