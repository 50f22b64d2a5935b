"""JSON as bytes: where a string ends, also when it comes in several chunks; parsing."""

import re
from typing import Any

import orjson

#: White space of JSON.
SPACE = b" \t\r\n"
#: A string with both of its quotes.
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_INSIDE = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_QUOTE = ord('"')


class OpenString:
    """A string whose end has not come yet; ``part`` is what came, from its quote on."""

    def __init__(self, part: bytes) -> None:
        self._escaped = False
        self.find_end(part, 1)

    def find_end(self, block: bytes, start: int) -> int:
        """Return where in ``block``, which goes on at ``start``, the string is over; -1: it goes on."""
        if self._escaped and start < len(block):
            self._escaped = False
            start += 1
        match = _INSIDE.match(block, start)
        assert match is not None
        stop = match.end()
        if stop == len(block):
            return -1
        if block[stop] == _QUOTE:
            return stop + 1
        self._escaped = True  # by a backslash that is the last byte
        return -1


def parse(text: bytes) -> Any:
    """Return the value that ``text``, which begins with a bracket, is.

    Two spaces behind that bracket make orjson 3.13 expect few values in many bytes: it refuses
    ``[  1,1,1,...`` of a thousand values for want of memory. So it gets none.

    Raises:
        orjson.JSONDecodeError: it is not JSON.
    """
    return orjson.loads(text[:1] + text[1:].lstrip(SPACE))
