"""Which regions on rows are looked at, the places first that divide a network most.

All regions between few places are: those of a few phases save steps and bindings, too.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.planning.rows.region_edges import RegionEdges
from pipeline.planning.rows.ways import Numbers
from pipeline.program.row_network import RowNetwork
from pipeline.program.sketches import sketches
from pipeline.program.stopping import tell
from pipeline.program.work import RowTimes

_ROWS = (1, 2, 4, 8, 16, 32)
_FIRST_ENDS = 10


@dataclass(frozen=True)
class Effort:
    """How long a search may take: so many ``steps``, operators that lie between places of regions.

    Not seconds, so that plans are the same wherever they are searched for: ``seconds`` end what no usual
    machine takes as long for.
    """

    steps: int
    seconds: float


#: A step takes up to 0.2 ms on a slow core, and most are left out: up to 2 s for large networks.
EFFORT = Effort(9_000, 60.0)


class Walk:
    """Sketches regions for ``searches`` of one network, the places first that divide it most."""

    def __init__(
        self,
        network: RowNetwork,
        searches: Sequence[RegionEdges],
        times: RowTimes,
        most: Effort,
    ) -> None:
        self._network = network
        self._searches = searches
        self._times = times
        self._most = most
        self._steps = 0
        self._skipped = 0  # ends that would have been too many steps
        self._n_ends = 0  # ends of regions that were looked at
        self._began = time.monotonic()
        self.complete = True

    def take(self) -> None:
        """Have all searches take what may be of use to any of them."""
        first = self._searches[0]
        ends = first.ends()
        for ends_now in (ends[:_FIRST_ENDS], ends[_FIRST_ENDS:]):
            largest = first.useful_weights()
            starts_of_ends = {end: first.starts(end, largest) for end in ends_now}
            counted = [
                (end, starts) for end, starts in starts_of_ends.items() if self._counts(end, starts)
            ]
            for number, (end, starts) in enumerate(counted):
                tell("regions on rows", number + 1, len(counted))
                self._sketch(end, starts)

    def _counts(self, end: int, starts: Numbers) -> bool:
        """Return whether there are any, and steps left for them, and count these."""
        if not len(starts) or self._steps >= self._most.steps:
            self._skipped += len(starts) > 0
            return False
        before = self._network.operators_before
        self._steps += before(end) - before(int(starts[0]))
        return True

    def _sketch(self, end: int, starts: Numbers) -> None:
        limit = max(search.line_buffer_limit(end) for search in self._searches)
        if limit <= 0 or self._is_over():
            return
        self._n_ends += 1
        limits = dict.fromkeys(starts.tolist(), limit)
        regions = list(sketches(self._network, end, limits, _ROWS, self._times))
        for search in self._searches:
            search.take(end, regions)

    def _is_over(self) -> bool:
        if time.monotonic() - self._began > self._most.seconds:
            self.complete = False
        return not self.complete

    @property
    def effort(self) -> str:
        """What was looked at, in words, and what ended that."""
        looked = f"regions that end at {self._n_ends} places were looked at"
        if not self.complete:
            return f"{looked}, until {self._most.seconds:.0f} s were over"
        if self._skipped:
            return f"{looked}, until {self._most.steps:,} operators between places were"
        return f"{looked}, all that may save memory"
