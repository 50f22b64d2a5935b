"""The brackets and commas of an array as JSON, which say whether rows have the right lengths."""

import math
from collections.abc import Sequence
from functools import lru_cache

from models.packs.records.ports import Port
from server.errors import InvalidRequestError

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
def _layouts(shape: tuple[int, ...], depth: int) -> tuple[Layout, ...]:
    """Return how an array of ``shape`` may be written in ``depth`` brackets: in one way or none."""
    if depth == 1:
        return (Layout((math.prod(shape),)),)
    return (Layout(shape),) if len(shape) == depth and 0 not in shape else ()


class Layouts:
    """Which layouts data may still have that belong to one of ``ports``: flat, or in rows of its shape.

    ``where`` names the input in errors.
    """

    def __init__(self, where: str, ports: Sequence[Port]) -> None:
        #: How many brackets the values are in; 0 before the first value.
        self.depth = 0
        self.n_values = 0
        self.deepest = max(1, *(len(port.shape) for port in ports))
        self._where = where
        self._ports = ports
        self._left: list[Layout] = []
        self._position = 0  # in all that are left

    @property
    def begun(self) -> bool:
        """Whether brackets or commas have been seen."""
        return self._position > 0

    def begin(self, depth: int) -> None:
        """Learn that the values are in ``depth`` brackets.

        Raises:
            InvalidRequestError: those of no port are.
        """
        self.depth = depth
        for port in self._ports:
            self._left += _layouts(port.shape, depth)
        if not self._left:
            raise self.not_nested_so()

    def advance(self, layout: bytes, n_values: int, done: bool) -> None:
        """Go on by brackets and commas with ``n_values`` values between them; ``done``: to the end.

        Raises:
            InvalidRequestError: those of no port go on like this.
        """
        start, stop = self._position, self._position + len(layout)
        self._position = stop
        self.n_values += n_values
        self._left = [
            item
            for item in self._left
            if item.part(start, stop) == layout
            # No value and one value have the same brackets and commas.
            and not (done and item.n_elements != self.n_values)
        ]
        if not self._left:
            raise self.not_nested_so() if self.depth > 1 else self._of_another_length(done)

    def fits(self, port: Port) -> bool:
        """Return whether the data, read to the end, are those of ``port``."""
        return any(layout in _layouts(port.shape, self.depth) for layout in self._left)

    def not_nested_so(self) -> InvalidRequestError:
        """Return the error of data in other rows."""
        shapes = " or ".join(str(list(port.shape)) for port in self._ports[:4])
        return InvalidRequestError(
            f"{self._where}: data is neither flat nor in rows of shape {shapes}"
        )

    def _of_another_length(self, done: bool) -> InvalidRequestError:
        count = f"{self.n_values}" if done else f"{self.n_values} or more"
        if len(self._ports) > 1:
            return InvalidRequestError(f"{self._where}: {count} elements, as no input has")
        shape = self._ports[0].shape
        return InvalidRequestError(
            f"{self._where}: {count} elements, shape {list(shape)} has {math.prod(shape)}"
        )
