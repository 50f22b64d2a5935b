"""The text of one "data", from its first bracket to its last, as it comes: values out, nothing kept.

A piece of text is cut where a value surely ends. Its values go through orjson, so numbers and strings are
exactly those of JSON; its brackets and commas are compared with those of the ports' shapes.
"""

import math
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import orjson

from models.packs.records.ports import Port
from server.codec.text.arrays import PortArray
from server.errors import InvalidRequestError

# JSON as bytes: where a string ends, also when it comes in several chunks; parsing.

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


# The brackets and commas of an array as JSON, which say whether rows have the right lengths.

# Rows of so many values are repeated as a whole; longer ones are put together of theirs.
_ROW_VALUES = 1 << 10
# About so much of a layout is made at a time.
_LAYOUT_BYTES = 1 << 12


def layout(shape: tuple[int, ...]) -> Iterator[bytes]:
    """Yield the pieces of an array of ``shape`` without its values: ``[[,,],[,,]]``."""
    if not shape:
        return
    size, inner = shape[0], shape[1:]
    yield b"["
    if math.prod(inner) <= _ROW_VALUES:
        row = b"".join(layout(inner)) + b","
        step = max(_LAYOUT_BYTES // len(row), 1)
        for first in range(0, size, step):
            rows = row * min(step, size - first)
            yield rows if first + step < size else rows[:-1]
    else:
        for index in range(size):
            if index:
                yield b","
            yield from layout(inner)
    yield b"]"


class _Nesting:
    """Whether data are flat, or in rows of the shape of ``port``; ``where`` names it in errors."""

    def __init__(self, where: str, port: Port) -> None:
        #: How many brackets the values are in; 0 before the first value.
        self.depth = 0
        self.n_values = 0
        self.deepest = max(1, len(port.shape))
        #: Whether brackets or commas have been seen.
        self.begun = False
        self._where = where
        self._shape = port.shape
        self._layout: Iterator[bytes] = iter(())
        self._ahead = b""

    def begin(self, depth: int) -> None:
        """Learn that the values are in ``depth`` brackets.

        Raises:
            InvalidRequestError: those of the port are not.
        """
        self.depth = depth
        if depth == 1:
            self._layout = layout((math.prod(self._shape),))
        elif depth == len(self._shape) and 0 not in self._shape:
            self._layout = layout(self._shape)
        else:
            raise self.not_nested_so()

    def advance(self, found: bytes, n_values: int, done: bool) -> None:
        """Go on by the brackets and commas that were ``found``, with ``n_values`` values between them.

        ``done``: to the end.

        Raises:
            InvalidRequestError: those of the port do not go on like this.
        """
        self.begun = self.begun or bool(found)
        self.n_values += n_values
        while len(self._ahead) < len(found) and (piece := next(self._layout, None)) is not None:
            self._ahead += piece
        is_right = self._ahead.startswith(found)
        self._ahead = self._ahead[len(found) :]
        # No value and one value have the same brackets and commas.
        if not is_right or (done and self.n_values != math.prod(self._shape)):
            raise self.not_nested_so() if self.depth > 1 else self._of_another_length(done)

    def not_nested_so(self) -> InvalidRequestError:
        """Return the error of data in other rows."""
        return InvalidRequestError(
            f"{self._where}: data is neither flat nor in rows of shape {list(self._shape)}"
        )

    def _of_another_length(self, done: bool) -> InvalidRequestError:
        count = f"{self.n_values}" if done else f"{self.n_values} or more"
        shape = self._shape
        return InvalidRequestError(
            f"{self._where}: {count} elements, shape {list(shape)} has {math.prod(shape)}"
        )


# Values, from the first bracket to the last.

_MAX_NUMBER = 4096
#: What may wait for its end, strings aside: a number, and brackets with spaces.
_MAX_CARRY = _MAX_NUMBER + 512
_STEP = _MAX_NUMBER // 2
_SPACES = re.compile(rb"[ \t\r\n]+")
_HEAD = re.compile(rb"(?:\[[ \t\r\n]*+)++")
# Stands for a string of several chunks, so that it is not searched again.
_PLACEHOLDER = b'""'
_LONG_NUMBER = re.compile(rb"[^\[\], \t\r\n]{%d}" % (_MAX_NUMBER + 1))
_NOT_NUMBERS = re.compile(rb'-?(?:NaN|Infinity)|["{\[]')
# Neighbours where a value or a comma is missing; "0" and '"' stand for values. (A pattern that begins
# with one byte is searched for fifty times as fast as one that does not.)
_NUMBER_BEFORE = re.compile(rb"\[(?<=0\[)")
_NUMBER_BEHIND = re.compile(rb"\]0")
_MISPLACED_STRING = re.compile(rb'[\[,][,\]]|["\]]["\[]')
_BRACKETS_TO_SPACES = bytes.maketrans(b"[]", b"  ")
_VALUES_TO_ZEROS = bytes(byte if byte in b"[]," else ord("0") for byte in range(256))


@cache
def _closed(depth: int) -> re.Pattern[bytes]:
    """Return what ends data of ``depth``: nowhere else do so many brackets close."""
    return re.compile(rb"\]" + rb"[ \t\r\n]*+\]" * (depth - 1))


class DataText:
    """Reads the data of ``port``; ``where`` names it in errors."""

    def __init__(self, where: str, port: Port) -> None:
        self.port = port
        self.values = PortArray(where, port)
        self.nesting = _Nesting(where, port)
        self._where = where
        self._carry = b"["
        self._string: OpenString | None = None  # behind what is carried
        self._string_text = bytearray()
        self._has_strings = False
        self._last_mark = b""

    @property
    def held_bytes(self) -> int:
        return self.values.held_bytes + len(self._carry) + len(self._string_text)

    def feed(self, block: bytes, start: int) -> int:
        """Take ``block`` from ``start``; return where the data end in it, -1: they go on.

        Raises:
            InvalidRequestError: they are not JSON, or not what the port takes.
        """
        if self._string is not None:
            end = self._string.find_end(block, start)
            self._string_text += block[start : end if end >= 0 else len(block)]
            if end < 0:
                return -1
            self._string = None
            self._carry += _PLACEHOLDER
            start = end
        buffer = self._carry + block[start:]
        if not self.nesting.depth and not self._begin(buffer):
            self._keep(buffer)
            return -1
        stop, done = self._strings(buffer) if self._has_strings else self._numbers(buffer)
        if done:
            self._carry = b""
            return len(block) - (len(buffer) - stop)
        self._keep(buffer[stop : len(buffer) - self._open_bytes()])
        return -1

    def _open_bytes(self) -> int:
        return len(self._string_text) if self._string is not None else 0

    def _keep(self, rest: bytes) -> None:
        if len(rest) > _MAX_CARRY:
            rest = _SPACES.sub(b" ", rest)
            if len(rest) > _MAX_CARRY:
                raise self._too_long(rest)
        self._carry = rest

    def _begin(self, buffer: bytes) -> bool:
        """Learn from what is before the first value how it is nested; return whether it has come."""
        head = _HEAD.match(buffer)
        assert head is not None
        depth = head[0].count(b"[")
        if len(buffer) == head.end() and depth <= self.nesting.deepest:
            return False
        self.nesting.begin(depth)
        self._has_strings = buffer[head.end() : head.end() + 1] == b'"'
        return True

    def _numbers(self, buffer: bytes) -> tuple[int, bool]:
        """Take values up to the last comma or the end; return where it is, and whether it is the end."""
        is_flat = self.nesting.depth == 1
        if is_flat:
            end = buffer.find(b"]") + 1
        else:
            match = _closed(self.nesting.depth).search(buffer)
            end = match.end() if match else 0
        stop, done = end or buffer.rfind(b",") + 1, end > 0
        if not stop:
            return 0, False
        piece = buffer[:stop]
        if stop > _MAX_NUMBER and _has_long_number(piece):
            raise self._too_long(piece)
        first = not self.nesting.begun
        if is_flat:
            text = piece[1:-1] if first else piece[:-1]
        else:
            text = (piece if done else piece[:-1]).translate(_BRACKETS_TO_SPACES)
        values = self._parse(text)
        if not values and (self.nesting.n_values or not done):
            raise self._not_json("a value is missing")
        if is_flat:
            layout = b"[" * first + b"," * (len(values) - done) + b"]" * done
        else:
            layout = self._layout_of(piece)
        self.nesting.advance(layout, len(values), done)
        self.values.add(values)
        return stop, done

    def _layout_of(self, piece: bytes) -> bytes:
        """Return brackets and commas of numbers in rows."""
        marks = piece.translate(_VALUES_TO_ZEROS, SPACE)
        joined = self._last_mark + marks
        if _NUMBER_BEFORE.search(joined) or _NUMBER_BEHIND.search(joined):
            raise self._not_json("a comma is missing")
        self._last_mark = marks[-1:]
        return marks.translate(None, b"0")

    def _strings(self, buffer: bytes) -> tuple[int, bool]:
        """Take all strings that are whole; return as ``_numbers``."""
        strings, between = STRING.findall(buffer), STRING.split(buffer)
        tail = between[-1]
        opened = tail.find(b'"')
        if opened >= 0:
            between[-1] = tail[:opened]
        bare = b'"'.join(between)
        end = _closed(self.nesting.depth).search(bare)
        stop = end.end() if end else len(bare.rstrip(b"[] \t\r\n"))
        marks = bare[:stop].translate(None, SPACE)
        others = marks.translate(None, b'[],"')
        if others:
            # With a brace the data were over before as many brackets closed as had opened.
            if b"}" in others:
                raise self.nesting.not_nested_so()
            raise self.values.holds("other values than strings")
        if _MISPLACED_STRING.search(self._last_mark + marks):
            raise self._not_json("a value or a comma is missing")
        self._last_mark = marks[-1:] or self._last_mark
        taken = strings[: marks.count(b'"')]
        stop += sum(map(len, taken)) - len(taken)  # from marks to strings
        if self._string_text:
            taken[0], self._string_text = bytes(self._string_text), bytearray()
        values = self._parse(b",".join(taken))
        self.nesting.advance(marks.translate(None, b'"'), len(values), end is not None)
        self.values.add(values)
        if opened >= 0 and end is None:
            self._string, self._string_text = OpenString(tail[opened:]), bytearray(tail[opened:])
        return stop, end is not None

    def _parse(self, text: bytes) -> list[object]:
        try:
            values: list[object] = parse(b"[" + text + b"]")
        except orjson.JSONDecodeError as exc:
            raise self._not_values(text, exc.msg) from None
        return values

    def _not_values(self, text: bytes, why: str) -> InvalidRequestError:
        """Return the error of ``text`` that is not numbers, or not JSON for the reason ``why``."""
        found = None if self._has_strings else _NOT_NUMBERS.search(text)
        match found and found[0]:
            case None:
                return self._not_json(why)
            case b'"':
                return self.values.holds("strings")
            case b"{":
                return self.values.holds("objects")
            case b"[":
                return self.nesting.not_nested_so()
            case word:
                return InvalidRequestError(
                    f"{self._where}: data has {word.decode()}, which is not JSON"
                )

    def _too_long(self, text: bytes) -> InvalidRequestError:
        found = _LONG_NUMBER.search(text)
        why = f"a number of over {_MAX_NUMBER} characters"
        return self._not_values(found[0] if found else text, why)

    def _not_json(self, why: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self._where}: data is not JSON: {why}")


def _has_long_number(text: bytes) -> bool:
    """Return whether a number has over _MAX_NUMBER characters, wherever chunks were cut."""
    # Such a one fills one of these steps; so nearly always a few searches for a comma are enough.
    if all(
        text.find(b",", start, start + _STEP) >= 0 for start in range(0, len(text) - _STEP, _STEP)
    ):
        return False
    return _LONG_NUMBER.search(text) is not None


# Data of an input whose name has not come yet.

_MARK = re.compile(STRING.pattern + rb'|["\[\]]', re.DOTALL)
# So much of the text becomes values at a time.
_BLOCK_BYTES = 16 << 10


class HeldText:
    """The text of data, kept until it is known of which port they are."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._depth = 1
        self._string: OpenString | None = None

    @property
    def held_bytes(self) -> int:
        return sys.getsizeof(self._text)

    def feed(self, block: bytes, start: int) -> int:
        """Take ``block`` from ``start``; return where the data end in it, -1: they go on."""
        position = start
        if self._string is not None:
            position = self._string.find_end(block, start)
            if position >= 0:
                self._string = None
        end = -1 if self._string is not None else self._find_end(block, position)
        self._text += block[start : end if end >= 0 else len(block)]
        return end

    def _find_end(self, block: bytes, position: int) -> int:
        for match in _MARK.finditer(block, position):
            match match[0]:
                case b"[":
                    self._depth += 1
                case b"]":
                    self._depth -= 1
                    if not self._depth:
                        return match.end()
                case b'"':
                    self._string = OpenString(block[match.start() :])
                    break
        return -1

    def read(self, where: str, port: Port) -> DataText:
        """Return the data of ``port`` that the text is, whole; raises as DataText.feed."""
        data, end = DataText(where, port), -1
        for start in range(0, len(self._text), _BLOCK_BYTES):
            end = data.feed(bytes(self._text[start : start + _BLOCK_BYTES]), 0)
        if end < 0:
            raise data.nesting.not_nested_so()
        return data
