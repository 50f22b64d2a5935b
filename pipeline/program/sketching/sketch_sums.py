"""What regions take, summed up operator by operator from their end: strips, bindings, seconds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.program.choice import BINDING_BYTES
from pipeline.program.loading import LoadedRows
from pipeline.program.many_rows import (
    MadeRows,
    Numbers,
    Times,
    WantedRows,
    Which,
    kept_rows,
    kept_sizes,
    total,
)
from pipeline.program.row_network import RowNetwork
from pipeline.program.row_times import RowTimes
from pipeline.program.steps import MOVE_BYTES


@dataclass(frozen=True)
class SketchedInput:
    """An input, ``rows`` of it, as if it were put together in a strip of its own.

    ``in_place``: the output may lie in the same strip. ``alone``: it is one value, not planes of several.
    """

    rows: WantedRows
    in_place: bool
    alone: bool
    strip_bytes: Numbers
    bindings: int
    seconds: Times

    @property
    def operator(self) -> int:
        return self.rows.operator

    def is_direct(self, made: MadeRows) -> Which:
        """Return which regions need, in every phase, just what is made in it: nothing is put together."""
        if not self.alone:
            return np.zeros(len(made.ends), bool)
        return self.rows.is_just(made)


class Sums:
    """Of ``count`` regions of operators from ``first`` on, at most, up to ``last``.

    ``live``: bytes of strips at each of these operators; ``kept``: of those between phases; ``bindings``:
    bytes of kernels and copies.
    """

    def __init__(self, count: int, first: int, last: int, times: RowTimes) -> None:
        self._times = times
        self._first = first
        self._last = last
        self.live: Numbers = np.zeros((last + 1 - first, count), np.int64)
        self.kept: Numbers = np.zeros(count, np.int64)
        self.bindings: Numbers = np.zeros(count, np.int64)
        self.seconds: Times = np.zeros(count)

    def copy(self) -> "Sums":
        made = Sums(len(self.kept), self._first, self._last, self._times)
        made.live, made.kept = self.live.copy(), self.kept.copy()
        made.bindings, made.seconds = self.bindings.copy(), self.seconds.copy()
        return made

    def take(self, other: "Sums", which: Which) -> None:
        """Take over what ``other`` has of the regions ``which``."""
        self.live[:, which], self.kept[which] = other.live[:, which], other.kept[which]
        self.bindings[which], self.seconds[which] = other.bindings[which], other.seconds[which]

    def strip_bytes(self, first: int) -> Numbers:
        """Return the bytes of all strips, at their fullest, from operator ``first`` on."""
        most: Numbers = np.maximum.reduce(self.live[first - self._first :]) + self.kept
        return most

    def add_kernels(self, operator: int, made: MadeRows, height: int) -> None:
        """Add the calls of ``operator``: as many bindings as there are numbers of rows."""
        self.bindings += made.kinds * BINDING_BYTES
        call = self._times.call
        self.seconds += [
            n * call(operator, max(round(height / max(n, 1)), 1)) for n in made.calls.tolist()
        ]
        self.seconds += self._times.first(operator)

    def add_copies(self, made: MadeRows, unit: int) -> None:
        """Add copies of ``made``, rows of ``unit`` bytes, between a strip and where these lie whole."""
        self.bindings += made.calls * MOVE_BYTES
        self.seconds += self.moves(made.calls, made.total * unit)

    def moves(self, calls: Numbers, n_bytes: Numbers) -> Times:
        """Return the seconds of so many copies, of ``n_bytes`` together."""
        move = self._times.move
        each = zip(calls.tolist(), n_bytes.tolist(), strict=True)
        return np.array([n * move(size // n) if n else 0.0 for n, size in each])

    def add_reader(self, reader: SketchedInput) -> None:
        """Add the strip of an input."""
        if not reader.in_place:
            self.live[reader.operator - self._first] += reader.strip_bytes
        self.bindings += reader.bindings
        self.seconds += reader.seconds

    def add_value(
        self,
        operator: int,
        made: MadeRows,
        unit: int,
        readers: Sequence[SketchedInput],
        whole: bool,
        kept: bool,
    ) -> None:
        """Add the strips of what ``operator`` makes, or is loaded before it, rows of ``unit`` bytes.

        ``whole``: it is copied to where it lies whole; ``kept``: later phases take rows from strips.
        """
        direct = [reader.is_direct(made) for reader in readers]
        self._add_strip(operator, made.most * unit, readers, direct, whole)
        if kept:
            gathering = [
                (item.rows, ~just)
                for item, just in zip(readers, direct, strict=True)
                if not just.all()
            ]
            if gathering:
                self._add_kept(made, kept_rows(made, gathering)[0], unit)

    def add_loadings(
        self,
        network: RowNetwork,
        loadings: Iterable[LoadedRows],
        readers: Mapping[int, Sequence[SketchedInput]],
    ) -> Numbers:
        """Add what is loaded, with who reads it; return the bytes of these values, for each region."""
        n_bytes = np.zeros(len(self.kept), np.int64)
        for item in loadings:
            value = network.values[item.value]
            unit = network.row_bytes[item.value]
            everywhere = item.which.all()
            there = self if everywhere else self.copy()
            there.add_copies(item.made, unit)
            there.add_value(item.operator, item.made, unit, readers[item.value], False, True)
            if not everywhere:
                self.take(there, item.which)
            n_bytes += np.where(item.which, unit * value.height, 0)
        return n_bytes

    def _add_strip(
        self,
        operator: int,
        strip: Numbers,
        readers: Sequence[SketchedInput],
        direct: Sequence[Which],
        whole: bool,
    ) -> None:
        """Add a strip until the last reader, who may write into it."""
        last = max((reader.operator for reader in readers), default=operator)
        self.live[operator - self._first : last + 1 - self._first] += strip
        for reader, just in zip(readers, direct, strict=True):
            if not just.any():
                continue
            live = self.live[reader.operator - self._first]
            if not reader.in_place:
                live -= just * reader.strip_bytes
            self.bindings -= just * reader.bindings
            self.seconds -= just * reader.seconds
            at_end = reader.in_place and reader.operator == last and not whole
            if at_end and sum(other.operator == last for other in readers) == 1:
                # The output lies in this strip: it is there once. Else it has a strip of its own.
                live -= just * strip

    def _add_kept(self, made: MadeRows, start: Numbers, unit: int) -> None:
        """Add the strips of the rows that later phases need, and copies to them."""
        left = made.ends - start
        calls = total(left > 0)
        if not calls.any():
            return
        self.kept += sum(kept_sizes(made, start)) * unit
        self.bindings += (calls > 0) * (4 * MOVE_BYTES)
        self.seconds += self.moves(calls, total(left) * unit)
