"""The text of one "data", from its first bracket to its last, as it comes: values out, nothing kept.

A piece of text is cut where a value surely ends. Its values go through orjson, so numbers and strings are
exactly those of JSON; its brackets and commas are compared with those of the ports' shapes.
"""

import math
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, Protocol

import orjson

from models.packs.records.ports import Port
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


class _Layouts:
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


class Sink(Protocol):
    """Where values go: an array, or what holds them until it is known which."""

    def add(self, values: list[object]) -> None:
        """Take the next values."""

    def holds(self, what: str) -> InvalidRequestError:
        """Return the error that the data are ``what``."""


@cache
def _closed(depth: int) -> re.Pattern[bytes]:
    """Return what ends data of ``depth``: nowhere else do so many brackets close."""
    return re.compile(rb"\]" + rb"[ \t\r\n]*+\]" * (depth - 1))


class DataText:
    """Reads the data of one of ``ports``; ``where`` names the input in errors."""

    def __init__(self, where: str, ports: Sequence[Port], sink: Sink) -> None:
        self.layouts = _Layouts(where, ports)
        self._where = where
        self._sink = sink
        self._carry = b"["
        self._string: OpenString | None = None  # behind what is carried
        self._string_text = bytearray()
        self._has_strings = False
        self._last_mark = b""

    @property
    def held_bytes(self) -> int:
        return len(self._carry) + len(self._string_text)

    def feed(self, block: bytes, start: int) -> int:
        """Take ``block`` from ``start``; return where the data end in it, -1: they go on.

        Raises:
            InvalidRequestError: they are not JSON, or not what any of the ports takes.
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
        if not self.layouts.depth and not self._begin(buffer):
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
        if len(buffer) == head.end() and depth <= self.layouts.deepest:
            return False
        self.layouts.begin(depth)
        self._has_strings = buffer[head.end() : head.end() + 1] == b'"'
        return True

    def _numbers(self, buffer: bytes) -> tuple[int, bool]:
        """Take values up to the last comma or the end; return where it is, and whether it is the end."""
        is_flat = self.layouts.depth == 1
        if is_flat:
            end = buffer.find(b"]") + 1
        else:
            match = _closed(self.layouts.depth).search(buffer)
            end = match.end() if match else 0
        stop, done = end or buffer.rfind(b",") + 1, end > 0
        if not stop:
            return 0, False
        piece = buffer[:stop]
        if stop > _MAX_NUMBER and _has_long_number(piece):
            raise self._too_long(piece)
        first = not self.layouts.begun
        if is_flat:
            text = piece[1:-1] if first else piece[:-1]
        else:
            text = (piece if done else piece[:-1]).translate(_BRACKETS_TO_SPACES)
        values = self._parse(text)
        if not values and (self.layouts.n_values or not done):
            raise self._not_json("a value is missing")
        if is_flat:
            layout = b"[" * first + b"," * (len(values) - done) + b"]" * done
        else:
            layout = self._layout_of(piece)
        self.layouts.advance(layout, len(values), done)
        self._sink.add(values)
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
        end = _closed(self.layouts.depth).search(bare)
        stop = end.end() if end else len(bare.rstrip(b"[] \t\r\n"))
        marks = bare[:stop].translate(None, SPACE)
        others = marks.translate(None, b'[],"')
        if others:
            # With a brace the data were over before as many brackets closed as had opened.
            if b"}" in others:
                raise self.layouts.not_nested_so()
            raise self._sink.holds("other values than strings")
        if _MISPLACED_STRING.search(self._last_mark + marks):
            raise self._not_json("a value or a comma is missing")
        self._last_mark = marks[-1:] or self._last_mark
        taken = strings[: marks.count(b'"')]
        stop += sum(map(len, taken)) - len(taken)  # from marks to strings
        if self._string_text:
            taken[0], self._string_text = bytes(self._string_text), bytearray()
        values = self._parse(b",".join(taken))
        self.layouts.advance(marks.translate(None, b'"'), len(values), end is not None)
        self._sink.add(values)
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
                return self._sink.holds("strings")
            case b"{":
                return self._sink.holds("objects")
            case b"[":
                return self.layouts.not_nested_so()
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
