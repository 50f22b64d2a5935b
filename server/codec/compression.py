"""Compressed bodies: opened block by block as they come, made piece by piece as they go.

A body of a kilobyte may open to a megabyte: nothing here holds more than a block of it, and what it opens
to has a limit of its own.
"""

import zlib
from collections.abc import Iterable, Iterator

from server.codec.framing import Coding
from server.errors import InvalidRequestError, TooLargeError

_BLOCK_BYTES = 16 << 10
_WINDOW = 15
_GZIP = 16  # added to the window, says zlib
# Answers are floats most often, which hardly shrink: the fastest level does as well as others, and a window
# of 4 KiB, with which zlib takes 32 KiB in all and not 256.
_LEVEL, _ANSWER_WINDOW, _ANSWER_MEMORY = 1, 12, 5


class BodyOpener:
    """Opens a body of ``coding``, to ``limit_bytes`` at most."""

    def __init__(self, coding: Coding, limit_bytes: int) -> None:
        self._coding = coding
        self._limit_bytes = limit_bytes
        self._n_bytes = 0
        if coding != "identity":
            self._begin()

    def _begin(self) -> None:
        self._stream = zlib.decompressobj(_WINDOW + _GZIP * (self._coding == "gzip"))

    def blocks(self, part: bytes) -> Iterator[bytes]:
        """Yield what ``part``, the next bytes of the body, is.

        Raises:
            InvalidRequestError: it is not of that coding. TooLargeError: over the limit.
        """
        if self._coding == "identity":
            yield part
            return
        while part:
            if self._stream.eof:
                if self._coding != "gzip":
                    raise InvalidRequestError(
                        f"something follows the end of the {self._coding} body"
                    )
                self._begin()  # of gzip one file may be several, one behind the other (RFC 1952)
            try:
                block = self._stream.decompress(part, _BLOCK_BYTES)
            except zlib.error:
                raise InvalidRequestError(f"the body is not {self._coding}") from None
            part = self._stream.unconsumed_tail or self._stream.unused_data
            self._n_bytes += len(block)
            if self._n_bytes > self._limit_bytes:
                raise TooLargeError(
                    f"the body, opened, is over the limit of {self._limit_bytes} bytes"
                )
            if block:
                yield block

    def finish(self) -> None:
        """Check that the body has come to its end.

        Raises:
            InvalidRequestError: it has not.
        """
        if self._coding != "identity" and not self._stream.eof:
            raise InvalidRequestError(f"the {self._coding} body ends early")


def compressed(pieces: Iterable[bytes], coding: Coding) -> Iterator[bytes]:
    """Yield ``pieces`` in ``coding``; some come out empty, so that a consumer gets its turn between two."""
    if coding == "identity":
        yield from pieces
        return
    window = _ANSWER_WINDOW + _GZIP * (coding == "gzip")
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, window, _ANSWER_MEMORY)
    for piece in pieces:
        for start in range(0, len(piece), _BLOCK_BYTES):
            yield stream.compress(piece[start : start + _BLOCK_BYTES])
    yield stream.flush()
