"""Regions on rows: boxes that span all columns, each made once, in order; what is loaded, what is kept."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from pipeline.program.boxes.box import Interval, RowBox
from pipeline.program.boxes.stretch import Inside, Keeping, Lying, Stretch, StripLayout
from pipeline.program.many_rows import (
    MadeRows,
    RowsProgress,
    WantedRows,
    Written,
    kept_rows,
    made_of,
    needed_loadings,
    saving_loadings,
    wanted,
)
from pipeline.program.region_plan import Region
from pipeline.program.row_network import RowNetwork, readers_of


class RowStretch(Stretch):
    """On ``rows`` rows at a time; nothing is written over what it reads unless ``saving``."""

    def __init__(
        self, network: RowNetwork, region: Region, operators: range, rows: int, saving: bool
    ) -> None:
        super().__init__(network, region, operators)
        self._rows = self._made(rows)
        self._wanted = {
            (position, number): wanted(position, taken.window, self._rows[item.output])
            for position, item in enumerate(self.items)
            for number, taken in enumerate(item.inputs)
        }
        self.over = tuple(self._load(saving))
        for value, new_rows in self._rows.items():
            columns = self.all_of(value).columns
            firsts, ends = new_rows.first[0].tolist(), new_rows.ends[0].tolist()
            self.inside[value].boxes = [
                [RowBox(Interval(first, end), columns)] if first < end else []
                for first, end in zip(firsts, ends, strict=True)
            ]

    def _made(self, rows: int) -> dict[int, MadeRows]:
        """Return the rows of each value that operators make; phases before any are none."""
        progress = RowsProgress(self.network, self.region.pieces, self.operators[-1], (rows,))
        ends = {
            item.output: progress.ends(number, self.inside[item.output].lies_whole)
            for number, item in zip(reversed(self.operators), reversed(self.items), strict=True)
        }
        begun = int((np.concatenate(list(ends.values())) > 0).any(axis=0).argmax())
        return {item.output: made_of(ends[item.output][:, begun:]) for item in self.items}

    def _load(self, saving: bool) -> Iterator[tuple[int, int]]:
        """Find the values that are loaded; yield pairs, one value written over the other to save memory."""
        reads: dict[int, list[WantedRows]] = {
            value: [self._wanted[reader] for reader in readers]
            for value, readers in readers_of(self.items, self.parts, self.outside).items()
        }
        writes = [
            Written(written, inside.maker, self._rows[value].ends)
            for value, inside in self.inside.items()
            for written in [*[value] * inside.whole, *(copy.row_value for copy in inside.copies)]
        ]
        loaded = [*needed_loadings(self.network, reads, writes)]
        if saving:
            loaded += saving_loadings(self.network, self.region.pieces, reads, writes)
        for item in loaded:
            if item.which[0]:
                self._rows[item.value] = item.made
                self.inside[item.value] = Inside(item.operator, loaded=True)
                if item.new is not None:
                    yield item.new, item.value

    @cached_property
    def direct(self) -> frozenset[tuple[int, int]]:
        return frozenset(
            (position, number)
            for (position, number), read in self._wanted.items()
            for value in [self.items[position].inputs[number].row_value]
            if value in self.inside and read.is_just(self._rows[value])[0]
        )

    def needed(self, position: int, number: int, box: RowBox) -> RowBox:
        taken = self.items[position].inputs[number]
        return RowBox(box.rows.through(taken.window), self.all_of(taken.row_value).columns)

    def left(self, value: int) -> tuple[list[Interval], bool]:
        """Return the rows of ``value`` that are needed after each phase, and whether any wait longer."""
        rows = self._rows[value]
        everywhere = np.ones(1, bool)
        gathering = [(self._wanted[reader], everywhere) for reader in self.gathering(value)]
        start, end = kept_rows(rows, gathering)
        pairs = zip(start[0].tolist(), end[0].tolist(), strict=True)
        return [Interval(*pair) for pair in pairs], bool((start < rows.first).any())


def kept_between_phases(stretch: RowStretch, layout: StripLayout) -> Keeping:
    """Return the rows that phases keep for later ones: of each value in strips of its own.

    These strips are two where rows move from one to the other, one where they are kept for one phase at
    most.
    """
    keeping = Keeping()
    for value, inside in stretch.inside.items():
        readers = stretch.gathering(value)
        if not readers or inside.whole:
            continue
        left, waits = stretch.left(value)
        if not any(left):
            continue
        strips = [layout.strips.kept() for _ in range(2 if waits else 1)]
        update = max([inside.maker, *(position for position, _ in readers)])
        layout.strips.prolong(layout.made[value, 0], update + 1)
        columns = stretch.all_of(value).columns
        turn, now = 0, Lying(value, strips[0], RowBox(Interval(0, 0), columns))
        for phase, (rows, new) in enumerate(zip(left, inside.boxes, strict=True)):
            keeping.add_held(phase, now)
            if new or rows != now.box.rows:
                turn = (turn + 1) % len(strips)
                now = layout.place(value, strips[turn], RowBox(rows, columns))
                keeping.add_put(phase, update, now)
    return keeping
