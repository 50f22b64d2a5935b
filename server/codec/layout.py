"""The brackets and commas of an array as JSON, which say whether rows have the right lengths."""

import math
from functools import lru_cache

# Rows up to this length are repeated as a whole; longer ones are put together of theirs.
_ROW_BYTES = 1 << 12


class Layout:
    """What is left of an array of ``shape``, of at least one axis, without its values: ``[[,,],[,,]]``."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.n_elements = math.prod(shape)
        self._lengths = [0]  # of what lies below each axis; a value has no brackets
        for size in reversed(shape):
            self._lengths.insert(0, 2 + max(size - 1, 0) + size * self._lengths[0])

    def part(self, start: int, stop: int) -> bytes:
        """Return the characters [start, stop), as far as there are so many."""
        return self._part(0, start, min(stop, self._lengths[0]))

    def _part(self, axis: int, start: int, stop: int) -> bytes:
        if start >= stop:
            return b""
        if self.shape[axis] == 0:
            return b"[]"[start:stop]
        opened = b"[" if start == 0 else b""
        rows = self._rows(axis, max(start - 1, 0), stop - 1)
        closed = stop == self._lengths[axis]
        return opened + (rows[:-1] + b"]" if closed else rows)

    def _rows(self, axis: int, start: int, stop: int) -> bytes:
        """Return [start, stop) of the rows of ``axis``, each with a comma behind it."""
        length = self._lengths[axis + 1]
        period = length + 1
        first, end = start // period, -(-stop // period)
        if period <= _ROW_BYTES:
            row = (self._part(axis + 1, 0, length) if length else b"") + b","
            return (row * (end - first))[start - first * period : stop - first * period]
        parts = []
        for offset in range(first * period, stop, period):
            parts.append(self._part(axis + 1, max(start - offset, 0), min(stop - offset, length)))
            if stop - offset >= period:
                parts.append(b",")
        return b"".join(parts)


@lru_cache(maxsize=256)
def layouts(shape: tuple[int, ...], depth: int) -> tuple[Layout, ...]:
    """Return how an array of ``shape`` may be written in ``depth`` brackets: in one way or none."""
    if depth == 1:
        return (Layout((math.prod(shape),)),)
    return (Layout(shape),) if len(shape) == depth and 0 not in shape else ()
