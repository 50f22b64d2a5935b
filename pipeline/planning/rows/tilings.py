"""Regions of the best ways on tiles instead of rows: which are worth a plan, and what they take.

Sketches know rows only, so each is planned exactly, and few are. Between regions that do the same, what a
profile says is wrong by up to a tenth (docs/tiles.md): so what tiles take counts as a tenth more, and they
are taken where they are faster even so.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from models.packs.choice import BINDING_BYTES
from pipeline.program.region_plan import RegionPlan
from pipeline.program.regions import Call, Region, RegionError, Reuse, plan_region
from pipeline.program.row_network import RowNetwork
from pipeline.program.row_times import RowTimes, phase_seconds
from pipeline.program.sketching.sketches import MOST_PHASES
from pipeline.program.steps import MOVE_BYTES, STEP_BYTES
from pipeline.program.stopping import go_on

#: Of the seconds of tiles: by so much they may be more than a profile says, beside those of rows.
DOUBT = 0.1
# How many times the rows of a region, in how many parts of its columns, and who makes overlaps.
_KINDS: tuple[tuple[int, int, Reuse], ...] = (
    (2, 2, "raster"),
    (1, 2, "raster"),
    (4, 4, "raster"),
    (2, 2, "none"),
)
# In no less than the memory of rows that have this part of their elements, tiles must be faster than these.
_PART_OF_ELEMENTS = 2

#: Seconds of a region that begins at a place and makes so many rows; None: nobody thought of it.
SecondsOnRows = Callable[[int, int], float | None]


@dataclass(frozen=True, slots=True)
class TiledRegion:
    """What ``region`` takes: bytes of strips and of what it binds, and seconds.

    ``touched``: the row values that it reads or writes where these lie whole.
    """

    region: Region
    strip_bytes: int
    binding_bytes: int
    seconds: float
    touched: frozenset[int]

    @property
    def doubt_seconds(self) -> float:
        return DOUBT * self.seconds


class Tilings:
    """Plans regions on tiles, until ``most_work`` operators of tiles were looked at."""

    def __init__(self, network: RowNetwork, times: RowTimes, most_work: int) -> None:
        self._network = network
        self._times = times
        self._left = most_work
        self._planned: dict[Region, TiledRegion | None] = {}

    def instead_of(self, region: Region, on_rows: SecondsOnRows) -> Iterator[TiledRegion]:
        """Yield what may be faster than ``region``, which runs on rows, or than fewer rows of it."""
        _, _, height, width = self._shape(region)
        for times, parts, reuse in _KINDS:
            rows, columns = times * region.rows, -(-width // parts)
            count = -(-height // rows) * -(-width // columns)
            if rows > height or columns == width or count > MOST_PHASES:
                continue
            tiled = Region(region.first_piece, region.end_piece, rows, columns, reuse)
            fewer = max(rows // (parts * _PART_OF_ELEMENTS), 1)
            most = on_rows(region.first_piece, fewer) or on_rows(region.first_piece, region.rows)
            if most is None or (1 + DOUBT) * self._kernels(tiled, count) < most:
                found = self._plan(tiled, count)
                if found is not None:
                    yield found

    def _shape(self, region: Region) -> tuple[int, ...]:
        last = self._network.operators[self._network.operators_before(region.end_piece) - 1]
        return self._network.values[last.output].shape

    def _kernels(self, region: Region, count: int) -> float:
        """Return the least that kernels of ``count`` tiles can take: as if no overlap was made again."""
        _, _, height, width = self._shape(region)
        assert region.columns is not None
        seconds = 0.0
        for number in self._operators(region):
            _, _, rows, columns = self._network.values[self._network.operators[number].output].shape
            each = -(-rows * region.rows // height), -(-columns * region.columns // width)
            seconds += count * self._times.call(number, *each)
        return seconds

    def _operators(self, region: Region) -> range:
        before = self._network.operators_before
        return range(before(region.first_piece), before(region.end_piece))

    def _plan(self, region: Region, count: int) -> TiledRegion | None:
        """Return what ``region`` takes; None: it cannot run, or enough was looked at."""
        if region not in self._planned:
            self._left -= count * len(self._operators(region))
            if self._left < 0:
                return None
            go_on()
            self._planned[region] = self._taken(region)
        return self._planned[region]

    def _taken(self, region: Region) -> TiledRegion | None:
        try:
            plan = plan_region(self._network, region)
        except RegionError:
            return None
        return TiledRegion(
            region,
            plan.live_bytes(),
            _binding_bytes(plan),
            sum(phase_seconds(self._network, plan, self._times)),
            plan.read | plan.written,
        )


def _binding_bytes(plan: RegionPlan) -> int:
    actions = {action for phase in plan.phases for action in phase}
    calls = sum(isinstance(action, Call) for action in actions)
    copies = len(actions) - calls
    return BINDING_BYTES * calls + MOVE_BYTES * copies + STEP_BYTES * len(plan.phases)
