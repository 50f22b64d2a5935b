"""Tensors as raw bytes: the binary tensor data extension, little-endian, row-major, one behind the other.

Strings are their length in four bytes and their UTF-8.
"""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from models.network.fields import STRINGS
from models.packs.records.ports import Port
from server.codec.datatypes import body_limit, datatype
from server.errors import InvalidRequestError, TooLargeError, shown

if TYPE_CHECKING:
    from models.packs.shapes import PackShapes

#: Of the length before a string.
_LENGTH_BYTES = 4

if sys.byteorder != "little":
    raise ImportError("raw tensors are little-endian, this machine is not")


# Raw bytes to an array of numbers: from where they came to their place, once.


class _RawNumbers:
    """Numbers of any dtype; NaN and infinity are some. ``where`` names them in errors."""

    loose_bytes = 0

    def __init__(self, where: str, port: Port) -> None:
        self._where = where
        self.array: NDArray[Any] = np.empty(port.shape, port.dtype)
        self._bytes = self.array.reshape(-1).view(np.uint8)
        self._position = 0

    def feed(self, block: memoryview) -> int:
        """Take what there is room for from the front of ``block``; return how many bytes that is.

        Raises:
            InvalidRequestError: no value of the dtype is this.
        """
        target = self._bytes[self._position : self._position + len(block)]
        target[...] = block[: target.size]
        self._position += target.size
        # NumPy believes what it is told of booleans, and counts with any other byte.
        if self.array.dtype.kind == "b" and (target > 1).any():
            raise InvalidRequestError(f"{self._where}: data holds other bytes than 0 and 1")
        return target.size

    def finish(self) -> None:
        """Check that all have come.

        Raises:
            InvalidRequestError: they have not.
        """
        missing = self._bytes.size - self._position
        if missing:
            raise InvalidRequestError(
                f"{self._where}: the body ends {missing} bytes before its data do"
            )


class _RawShapes(_RawNumbers):
    """Numbers of the largest of several ``shapes``, or fewer, of one of the others: all that comes."""

    def __init__(self, where: str, port: Port, shapes: Iterable[tuple[int, ...]]) -> None:
        super().__init__(where, port)
        item_bytes = self.array.dtype.itemsize
        self._shapes = [(item_bytes * math.prod(shape), shape) for shape in shapes]

    def finish(self) -> None:
        """Give the array the shape that has as many numbers.

        Raises:
            InvalidRequestError: none has, or several have.
        """
        matches = [shape for n_bytes, shape in self._shapes if n_bytes == self._position]
        if len(matches) != 1:
            choices = "; ".join(f"{list(shape)} ({size})" for size, shape in self._shapes)
            raise InvalidRequestError(
                f"{self._where}: {self._position} bytes are of {len(matches)} shapes of the model, which "
                f"takes {choices}; JSON says which"
            )
        self.array = self._bytes[: self._position].view(self.array.dtype).reshape(matches[0])


# Raw bytes to an array of strings: each is its length and its UTF-8, or one alone is a whole body.


class _RawStrings:
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
            self._add(self._rest[start + _LENGTH_BYTES : stop])
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
        head = self._rest[start : start + _LENGTH_BYTES]
        if len(head) < _LENGTH_BYTES:
            return len(self._rest) + 1
        stop = start + _LENGTH_BYTES + int.from_bytes(head, "little")
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


class _BareString:
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


# Which raw bytes belong to which array, and whether there are as many as shapes ask for.


class RawTensor(Protocol):
    """An array that bytes fill from the front; see RawNumbers and RawStrings."""

    array: NDArray[Any]

    @property
    def loose_bytes(self) -> int:
        """Memory beside what an array of numbers takes."""

    def feed(self, block: memoryview) -> int: ...

    def finish(self) -> None: ...


def raw_tensor(where: str, port: Port, n_bytes: int) -> RawTensor:
    """Return the array of ``port``, to be filled by ``n_bytes``; ``where`` names it in errors.

    Raises:
        InvalidRequestError: the port has not so many. TooLargeError: strings over their limit.
    """
    if port.dtype == STRINGS:
        limit = body_limit([port])
        if n_bytes > limit:
            raise TooLargeError(
                f"{where}: {shown(str(n_bytes))[1:-1]} bytes, over its limit of {limit}"
            )
        return _RawStrings(where, port, n_bytes)
    if n_bytes != port.n_bytes:
        raise InvalidRequestError(
            f"{where}: binary_data_size {shown(str(n_bytes))[1:-1]}, shape {list(port.shape)} of "
            f"{datatype(port.dtype)} has {port.n_bytes} bytes"
        )
    return _RawNumbers(where, port)


def bare_tensor(ports: Sequence[Port], shapes: "PackShapes | None" = None) -> tuple[str, RawTensor]:
    """Return name and array of the one input that a body without any JSON is; ``shapes``: of the model.

    Raises:
        InvalidRequestError: the model takes several, or several strings.
    """
    required = [port for port in ports if port.default is None] or list(ports)
    if len(required) != 1:
        raise InvalidRequestError(
            f"without JSON a body is one input; the model takes {len(required)}"
        )
    (port,) = required
    where = f"input {shown(port.name)}"
    if shapes is not None and port.dtype != STRINGS:
        return port.name, _RawShapes(where, port, shapes.shapes_of(port.name))
    if port.dtype != STRINGS:
        return port.name, _RawNumbers(where, port)
    if math.prod(port.shape) != 1:
        raise InvalidRequestError(f"{where}: without JSON a body is one string alone")
    return port.name, _BareString(where, port, body_limit([port]))


class RawReader:
    """Fills ``tensors``, one behind the other, with what is behind the JSON of a body."""

    def __init__(self, tensors: Sequence[RawTensor]) -> None:
        self._tensors = tensors
        self._current = 0

    @property
    def loose_bytes(self) -> int:
        """Of what is held, what no array of numbers is."""
        return sum(tensor.loose_bytes for tensor in self._tensors)

    def feed(self, block: memoryview) -> None:
        """Take the next bytes.

        Raises:
            InvalidRequestError: they are no values of their tensor, or too many. TooLargeError: as ever.
        """
        while block:
            if self._current == len(self._tensors):
                raise InvalidRequestError("the body goes on behind the data of its inputs")
            taken = self._tensors[self._current].feed(block)
            block = block[taken:]
            self._current += bool(block)

    def finish(self) -> None:
        """Check that all have come.

        Raises:
            InvalidRequestError: they have not.
        """
        for tensor in self._tensors:
            tensor.finish()


# Arrays to raw bytes, in pieces.

#: The longest piece.
PIECE_BYTES = 64 << 10


def raw_bytes(array: NDArray[Any]) -> int:
    """Return how long ``array`` is as raw bytes."""
    if array.dtype.kind != "O":
        return array.nbytes
    return sum(_LENGTH_BYTES + len(text.encode()) for text in array.flat)


def raw_pieces(array: NDArray[Any]) -> Iterator[bytes]:
    """Yield ``array`` as raw bytes, PIECE_BYTES at most at a time."""
    for part in raw_parts(array):
        for start in range(0, len(part), PIECE_BYTES):
            yield bytes(part[start : start + PIECE_BYTES])


def raw_parts(array: NDArray[Any]) -> Iterator[memoryview]:
    """Yield ``array`` as raw bytes, numbers where they lie."""
    return _strings(array) if array.dtype.kind == "O" else _numbers(array)


def _numbers(array: NDArray[Any]) -> Iterator[memoryview]:
    if array.size:
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _strings(array: NDArray[Any]) -> Iterator[memoryview]:
    piece = bytearray()
    for text in array.flat:
        data = text.encode()
        piece += len(data).to_bytes(_LENGTH_BYTES, "little") + data
        if len(piece) >= PIECE_BYTES:
            yield memoryview(bytes(piece))
            piece = bytearray()
    yield memoryview(bytes(piece))
