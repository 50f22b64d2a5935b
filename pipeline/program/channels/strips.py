"""Where a bottleneck keeps what it makes: strips of a group's channels, and what stays for all groups."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from models.packs.records.bottlenecks import Bottleneck
from pipeline.program.channels.groups import passes
from pipeline.program.region_plan import Strip
from pipeline.program.row_ranges import Rows

_FLOAT_BYTES = 4


@dataclass
class _Growing:
    n_bytes: int
    start: int
    end: int
    kept: bool = False


@dataclass
class GroupStrips:
    """The strips of ``item`` in groups of up to ``most`` channels; ``ranges``: rows of each band.

    ``of_operator``: the strip of what an operator makes in a pass; ``moment``: when it runs.
    """

    item: Bottleneck
    most: int
    ranges: Sequence[Sequence[Rows]]
    of_operator: dict[tuple[int, int], int] = field(default_factory=dict)
    moment: dict[tuple[int, int], int] = field(default_factory=dict)
    _strips: list[_Growing] = field(default_factory=list)

    def __post_init__(self) -> None:
        for turn, numbers in enumerate(passes(self.item)):
            for number in numbers:
                self.moment[turn, number] = len(self.moment)
            for number in numbers:
                self._place(turn, number, numbers)

    @property
    def moments(self) -> int:
        return len(self.moment)

    def built(self) -> tuple[Strip, ...]:
        """Return all strips."""
        return tuple(
            Strip(strip.n_bytes, strip.start, strip.end, strip.kept) for strip in self._strips
        )

    def kept(self, n_bytes: int) -> int:
        """Return a new strip that stays through all phases, of at least so many bytes."""
        return self._add(n_bytes, 0, self.moments, kept=True)

    def during(self, n_bytes: int, turn: int) -> int:
        """Return a new strip for pass ``turn``."""
        moments = [moment for (own, _), moment in self.moment.items() if own == turn]
        return self._add(n_bytes, min(moments), max(moments) + 1)

    def _place(self, turn: int, number: int, numbers: Sequence[int]) -> None:
        operator = self.item.operators[number]
        if operator.kind == "sum":
            return
        if operator.kind in ("mean", "once"):
            self.of_operator[turn, number] = self.kept(_FLOAT_BYTES * math.prod(operator.shape))
            return
        _, _, _, width = operator.shape
        rows = max(len(ranges[number]) for ranges in self.ranges)
        readers = [
            self.moment[turn, other]
            for other in numbers
            if any(taken.made == number for taken in self.item.operators[other].inputs)
        ]
        n_bytes = _FLOAT_BYTES * self.most * rows * width
        start = self.moment[turn, number]
        self.of_operator[turn, number] = self._add(n_bytes, start, max(readers) + 1)

    def _add(self, n_bytes: int, start: int, end: int, kept: bool = False) -> int:
        self._strips.append(_Growing(n_bytes, start, end, kept))
        return len(self._strips) - 1
