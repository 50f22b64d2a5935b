"""Which regions on rows are looked at, the places first that divide a network most.

A quick search looks at all regions between few places: those of a few phases save steps and bindings, too.
One that takes its time looks at more places, for regions that save memory of the largest moments: they
cover what needs more of the arena whole than some way through the network, with strips that take less than
that. Where a profile may have rows that are faster than whole pieces, it looks at all others as well.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

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
    machine takes as long for. ``reach``: behind the first places regions have at most so many
    operators for each row that they make: strips of more are soon as large as the whole values.
    """

    steps: int
    seconds: float
    reach: float = inf


#: While a model loads, and where time is no object. A step takes up to 0.2 ms on a slow core, and most are
#: left out, so these stand for up to 2 s and 24 s.
QUICK, THOROUGH = Effort(9_000, 60.0), Effort(120_000, 600.0, reach=1.0)


class Walk:
    """Sketches regions for ``searches`` of one network, the places first that divide it most.

    ``slower``: rows save memory and no time.
    """

    def __init__(
        self,
        network: RowNetwork,
        searches: Sequence[RegionEdges],
        times: RowTimes,
        most: Effort,
        slower: bool,
    ) -> None:
        self._network = network
        self._searches = searches
        self._times = times
        self._most = most
        self._narrow = slower and most.reach < inf
        self._steps = 0
        self._skipped = 0  # ends that would have been too many steps
        # By end, of each beginning that was asked for the strips that were too many.
        self._sketched: dict[int, Numbers] = {}
        self._began = time.monotonic()
        self.complete = True

    def take(self) -> None:
        """Have all searches take what may be of use to any of them."""
        first = self._searches[0]
        ends = first.ends()
        reach = self._most.reach
        for ends_now, far in ((ends[:_FIRST_ENDS], inf), (ends[_FIRST_ENDS:], reach)):
            largest = first.useful_weights()
            starts_of_ends = {end: first.starts(end, largest, far) for end in ends_now}
            self._take(
                {end: starts for end, starts in starts_of_ends.items() if self._counts(end, starts)}
            )

    def _counts(self, end: int, starts: Numbers) -> bool:
        """Return whether there are any, and steps left for them, and count these."""
        if not len(starts) or self._steps >= self._most.steps:
            self._skipped += len(starts) > 0
            return False
        before = self._network.operators_before
        self._steps += before(end) - before(int(starts[0]))
        return True

    def _take(self, places: dict[int, Numbers]) -> None:
        """Take regions to each of ``places`` from any of its beginnings.

        The less memory a way takes with what is known, the more of them count.
        """
        known: list[int] = []
        while True:
            least = [search.least_arena() if self._sketched else 0 for search in self._searches]
            if least == known:
                return
            known = least
            for number, (end, starts) in enumerate(places.items()):
                tell("regions on rows", number + 1, len(places))
                self._sketch(end, starts, least)
            if not self._narrow or not any(least):
                return

    def _sketch(self, end: int, starts: Numbers, least: Sequence[int]) -> None:
        known = self._sketched.setdefault(end, np.zeros_like(starts))
        most = np.max(
            [
                search.useful(end, starts, arena if self._narrow else None)
                for search, arena in zip(self._searches, least, strict=True)
            ],
            axis=0,
        )
        more = most > known
        if not more.any() or self._is_over():
            return
        known[more] = most[more]
        asked = dict(zip(starts[more].tolist(), most[more].tolist(), strict=True))
        regions = list(sketches(self._network, end, asked, _ROWS, self._times))
        for search in self._searches:
            search.take(end, regions)

    def _is_over(self) -> bool:
        if time.monotonic() - self._began > self._most.seconds:
            self.complete = False
        return not self.complete

    @property
    def effort(self) -> str:
        """What was looked at, in words, and what ended that."""
        places = sum(known.any() for known in self._sketched.values())
        looked = f"regions that end at {places} places were looked at"
        if not self.complete:
            return f"{looked}, until {self._most.seconds:.0f} s were over"
        if self._skipped:
            return f"{looked}, until {self._most.steps:,} operators between places were"
        return f"{looked}, all that may save memory"
