"""Which raw bytes belong to which array, and whether there are as many as shapes ask for."""

import math
from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from models.network.fields import STRINGS
from models.packs.records.ports import Port
from server.codec.datatypes import body_limit, datatype
from server.codec.raw.numbers import RawNumbers
from server.codec.raw.strings import BareString, RawStrings
from server.errors import InvalidRequestError, TooLargeError, shown


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
        return RawStrings(where, port, n_bytes)
    if n_bytes != port.n_bytes:
        raise InvalidRequestError(
            f"{where}: binary_data_size {shown(str(n_bytes))[1:-1]}, shape {list(port.shape)} of "
            f"{datatype(port.dtype)} has {port.n_bytes} bytes"
        )
    return RawNumbers(where, port)


def bare_tensor(ports: Sequence[Port]) -> tuple[str, RawTensor]:
    """Return name and array of the one input that a body without any JSON is.

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
    if port.dtype != STRINGS:
        return port.name, RawNumbers(where, port)
    if math.prod(port.shape) != 1:
        raise InvalidRequestError(f"{where}: without JSON a body is one string alone")
    return port.name, BareString(where, port, body_limit([port]))


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
