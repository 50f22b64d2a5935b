"""What whole values and weights take around a place, or between two places, of a network."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from itertools import accumulate

import numpy as np

from pipeline.program.lives import lifetimes
from pipeline.program.program import Program
from pipeline.program.row_network import RowNetwork
from pipeline.program.values.shared_memory import roots


class LiveValues:
    """Sums over values that live, in bytes; the parts of those in ``apart`` lie anywhere.

    ``given``: inputs that stay with the request, since only regions read them. ``preloaded``: weights take
    nothing.
    """

    def __init__(
        self,
        program: Program,
        network: RowNetwork,
        apart: frozenset[int] = frozenset(),
        given: frozenset[int] = frozenset(),
        preloaded: bool = False,
    ) -> None:
        self._preloaded = preloaded
        self._program = program
        self._network = network
        self._given = given
        self._lives = tuple(
            replace(life, n_bytes=0) if value in given else life
            for value, life in enumerate(lifetimes(program, apart=apart))
        )
        self._roots = [root for root, _ in roots(program, apart=apart)]
        self._inputs = {port.value for port in program.inputs}
        self._sizes, self._starts, self._ends = (
            np.array([(life.n_bytes, life.start, life.end) for life in self._lives], np.int64)
            .reshape(-1, 3)
            .T
        )

    @cached_property
    def live(self) -> list[int]:
        """Bytes in use while each piece runs."""
        return self._sums(lambda start, end: (start, end))[:-1]

    @cached_property
    def crossing(self) -> list[int]:
        """Bytes that are kept between piece i - 1 and piece i."""
        return self._sums(lambda start, end: (start + 1, end))

    def weights(self, start: int, end: int) -> int:
        """Return the streamed weights of the pieces [start, end)."""
        return 0 if self._preloaded else self._weights_before[end] - self._weights_before[start]

    @cached_property
    def _weights_before(self) -> list[int]:
        spans, seen = self._program.spans, set[int]()
        before = [0] * (self._program.own.start + 1)
        for piece in self._program.own_pieces:
            new = (
                piece.span is not None and piece.span not in seen and not spans[piece.span].resident
            )
            before.append(
                before[-1] + (spans[piece.span].length if new and piece.span is not None else 0)
            )
            if piece.span is not None:
                seen.add(piece.span)
        return before

    def beside(self, start: int, end: int, touched: frozenset[int], by_rows: bool = True) -> int:
        """Return the bytes of whole values that live while a region of the pieces [start, end) runs.

        ``touched``: the row values that it reads or writes whole; inputs ``by_rows``.
        """
        after = self._network.readers.after(end)
        values = {self._network.values[number].value for number in touched}
        # Rows of an input come from the request, unless others read it later.
        whole = {
            self._roots[value]
            for value in values
            if not by_rows
            or value not in self._inputs
            or (value in after and value not in self._given)
        }
        through = (self._starts < start) & (self._ends > end)
        through[list(whole)] = True
        return int(self._sizes[through].sum())

    def _sums(self, when: Callable[[int, int], tuple[int, int]]) -> list[int]:
        count = self._program.own.stop
        changes = [0] * (count + 3)
        for life in self._lives:
            start, end = when(life.start, life.end)
            if start < end:
                changes[start] += life.n_bytes
                changes[end] -= life.n_bytes
        return list(accumulate(changes[: count + 1]))
