"""Raw bytes to an array of numbers: from where they came to their place, once."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.packs.records.ports import Port
from server.errors import InvalidRequestError


class RawNumbers:
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
