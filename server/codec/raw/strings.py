"""Raw bytes to an array of strings: each is its length and its UTF-8, or one alone is a whole body."""

import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.packs.records.ports import Port
from server.codec.raw import LENGTH_BYTES
from server.errors import InvalidRequestError, TooLargeError


class RawStrings:
    """The strings of ``port`` in ``n_bytes``; ``where`` names them in errors."""

    def __init__(self, where: str, port: Port, n_bytes: int) -> None:
        self._where = where
        self._values: NDArray[Any] = np.empty(math.prod(port.shape), object)
        self.array = self._values.reshape(port.shape)
        self._left = n_bytes
        self._n_values = 0
        self._string_bytes = 0
        self._rest = bytearray()

    @property
    def loose_bytes(self) -> int:
        """What the strings take, and what is none yet."""
        return len(self._rest) + self._string_bytes

    def feed(self, block: memoryview) -> int:
        """Take what there is room for from the front of ``block``; return how many bytes that is.

        Raises:
            InvalidRequestError: these are not so many strings, or not UTF-8.
        """
        taken = block[: self._left]
        self._left -= len(taken)
        self._rest += taken
        start = 0
        while (stop := self._end_of_string(start)) <= len(self._rest):
            self._add(self._rest[start + LENGTH_BYTES : stop])
            start = stop
        del self._rest[:start]
        return len(taken)

    def finish(self) -> None:
        """Check that all have come.

        Raises:
            InvalidRequestError: they have not.
        """
        if self._left:
            raise InvalidRequestError(
                f"{self._where}: the body ends {self._left} bytes before its data do"
            )
        if self._rest or self._n_values < self._values.size:
            raise self._not_so_many()

    def _end_of_string(self, start: int) -> int:
        """Return where the string ends that begins at ``start`` of the rest, as far as that is known."""
        head = self._rest[start : start + LENGTH_BYTES]
        if len(head) < LENGTH_BYTES:
            return len(self._rest) + 1
        stop = start + LENGTH_BYTES + int.from_bytes(head, "little")
        # Said before it is waited for.
        if stop > len(self._rest) + self._left or self._n_values == self._values.size:
            raise self._not_so_many()
        return stop

    def _add(self, data: bytearray) -> None:
        value = _text(self._where, self._n_values, data)
        self._values[self._n_values] = value
        self._n_values += 1
        self._string_bytes += sys.getsizeof(value)

    def _not_so_many(self) -> InvalidRequestError:
        shape = list(self.array.shape)
        return InvalidRequestError(
            f"{self._where}: its bytes are not the {self._values.size} strings of shape {shape}, "
            "each behind its length in four bytes"
        )


class BareString:
    """One string without its length, of ``limit_bytes`` at most: all that comes."""

    def __init__(self, where: str, port: Port, limit_bytes: int) -> None:
        self._where = where
        self._limit_bytes = limit_bytes
        self._data = bytearray()
        self.array: NDArray[Any] = np.empty(port.shape, object)

    @property
    def loose_bytes(self) -> int:
        """What has come, and the string that it will be."""
        return 2 * len(self._data)

    def feed(self, block: memoryview) -> int:
        """Take ``block``, all of it.

        Raises:
            TooLargeError: it is over the limit.
        """
        self._data += block
        if len(self._data) > self._limit_bytes:
            raise TooLargeError(f"{self._where}: over the limit of {self._limit_bytes} bytes")
        return len(block)

    def finish(self) -> None:
        """Make the string of what has come.

        Raises:
            InvalidRequestError: it is not UTF-8.
        """
        self.array.reshape(-1)[0] = _text(self._where, 0, self._data)


def _text(where: str, index: int, data: bytearray) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidRequestError(f"{where}: element {index} is not UTF-8") from None
