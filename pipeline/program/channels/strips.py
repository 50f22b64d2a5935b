"""Where a bottleneck keeps what it makes: strips of a group's channels, and what stays for all groups."""

import math
from collections.abc import Sequence

from models.packs.records.bottlenecks import Bottleneck
from pipeline.program.channels.groups import Band, passes
from pipeline.program.region_plan import Strips

_FLOAT_BYTES = 4


class GroupStrips(Strips):
    """Those of ``item`` in groups of up to ``most`` channels; on ``bands``.

    ``of_operator``: the strip of what an operator makes in a pass.
    """

    def __init__(self, item: Bottleneck, most: int, bands: Sequence[Band]) -> None:
        turns = passes(item)
        super().__init__(sum(map(len, turns)))
        self._item = item
        self._most = most
        self._bands = bands
        self.of_operator: dict[tuple[int, int], int] = {}
        self._moments: list[range] = []  # of each pass
        for turn, numbers in enumerate(turns):
            begin = self._moments[-1].stop if turn else 0
            self._moments.append(range(begin, begin + len(numbers)))
            for number in numbers:
                self._place(turn, number, numbers)

    def during_pass(self, turn: int, n_bytes: int) -> int:
        """Return a new strip for pass ``turn``."""
        return self.during(self._moments[turn].start, self._moments[turn].stop, n_bytes)

    def _place(self, turn: int, number: int, numbers: Sequence[int]) -> None:
        operator = self._item.operators[number]
        if operator.kind == "sum":
            return
        if operator.kind in ("mean", "once"):
            n_bytes = _FLOAT_BYTES * math.prod(operator.shape)
            self.of_operator[turn, number] = self.kept(n_bytes)
            return
        _, _, _, width = operator.shape
        rows = max(len(band.made[number]) for band in self._bands)
        moment = dict(zip(numbers, self._moments[turn], strict=True))
        readers = [
            moment[other]
            for other in numbers
            if any(taken.made == number for taken in self._item.operators[other].inputs)
        ]
        self.of_operator[turn, number] = self.during(
            moment[number], max(readers) + 1, _FLOAT_BYTES * self._most * rows * width
        )
