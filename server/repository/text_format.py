"""Protobuf's text format, as config.pbtxt is written: text to fields, and fields by name, with their types.

The protobuf library would need the whole schema of Triton's configuration, and some MiB of the server's
memory, for a dozen fields; the grammar takes a page. This parser follows
https://protobuf.dev/reference/protobuf/textformat-spec/ with a bound on nesting.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

_MOST_NESTED = 32
_LONGEST_SHOWN = 40

_TOKEN = re.compile(
    r"""
    (?P<space>   (?: [ \t\r\n\f\v] | \#[^\n]* )+ )
  | (?P<string>  "(?:[^"\\\n]|\\[^\n])*" | '(?:[^'\\\n]|\\[^\n])*' )
  | (?P<number>  (?: \d+\.\d* | \.\d+ ) (?:[eE][+-]?\d+)? [fF]? | \d+[eE][+-]?\d+[fF]? | \d+[fF]
               | 0[xX][0-9a-fA-F]+ | \d+ ) (?![A-Za-z0-9_.])
  | (?P<word>    [A-Za-z_][A-Za-z0-9_]* )
  | (?P<mark>    [{}<>\[\]:;,./-] )
    """,
    re.VERBOSE,
)
_ESCAPE = re.compile(
    r"\\(?:(?P<simple>[abfnrtv?\\'\"])|(?P<octal>[0-7]{1,3})|[xX](?P<hex>[0-9a-fA-F]{1,2})"
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})|(?P<bad>.))",
    re.DOTALL,
)
_SIMPLE = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True)) | {mark: mark for mark in "?\\'\""}
_CLOSING = {"{": "}", "<": ">"}


class TextFormatError(ValueError):
    """The text is not what the format asks for; ``line`` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


class Word(str):
    """A name that stands for a value: true, ENUM_VALUE, -inf."""

    __slots__ = ()


@dataclass(frozen=True)
class Field:
    """One field as it was written; a list of several values is a field for each."""

    name: str
    value: "Value"
    line: int


#: Fields in the order of the text; a name may occur several times.
Message = tuple[Field, ...]
Value = bytes | int | float | Word | Message


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def parse(text: str) -> Message:
    """Return the fields of ``text``.

    Raises:
        TextFormatError: it is not in the text format; the message quotes the token.
    """
    return _Parser(text).whole()


class _Parser:
    """Goes through the tokens once, one token ahead."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = next(self._tokens)
        self._nested = 0

    def whole(self) -> Message:
        fields = self._fields("")
        if self._next.kind != "end":
            raise self._unexpected("a field")
        return fields

    def _fields(self, closing: str) -> Message:
        """Return fields up to the mark ``closing``, which is not taken; empty: to the end."""
        fields: list[Field] = []
        while self._next.kind != "end" and self._next.text != closing:
            fields += self._field()
            if self._next.text in {";", ","}:
                self._take()
        return tuple(fields)

    def _field(self) -> list[Field]:
        line, name = self._next.line, self._name()
        has_colon = self._next.text == ":"
        if has_colon:
            self._take()
        if self._next.text in _CLOSING:
            return [Field(name, self._message(), line)]
        if self._next.text == "[":
            return [Field(name, value, line) for value in self._list(has_colon)]
        if not has_colon:
            raise self._unexpected("':' or '{'")
        return [Field(name, self._scalar(), line)]

    def _name(self) -> str:
        """Return a field's name; that of an extension or a type with its brackets."""
        if self._next.text != "[":
            return self._expect("word", "a field").text
        self._take()
        parts = ["["]
        while self._next.kind == "word" or self._next.text in {".", "/", "-"}:
            parts.append(self._take().text)
        self._expect_mark("]")
        return "".join([*parts, "]"])

    def _message(self) -> Message:
        opening = self._take()
        self._nested += 1
        if self._nested > _MOST_NESTED:
            raise TextFormatError(opening.line, f"nested more than {_MOST_NESTED} deep")
        closing = _CLOSING[opening.text]
        fields = self._fields(closing)
        self._expect_mark(closing)
        self._nested -= 1
        return fields

    def _list(self, may_be_scalars: bool) -> list[Value]:
        """Return the values of ``[a, b]``; a list of messages needs no colon before it."""
        self._take()
        values: list[Value] = []
        while self._next.text != "]":
            if values:
                self._expect_mark(",")
            if self._next.text in _CLOSING:
                values.append(self._message())
            elif may_be_scalars:
                values.append(self._scalar())
            else:
                raise self._unexpected("'{'")
        self._take()
        return values

    def _scalar(self) -> Value:
        if self._next.kind == "string":
            return self._string()
        sign = -1 if self._next.text == "-" else 1
        if sign < 0:
            self._take()
        if self._next.kind == "number":
            return sign * _number(self._take())
        token = self._expect("word", "a value")
        if sign < 0 and token.text.lower() not in {"inf", "infinity", "nan"}:
            raise TextFormatError(token.line, f"-{_shown(token.text)} is no number")
        return Word(("-" if sign < 0 else "") + token.text)

    def _string(self) -> bytes:
        """Return a string; several that follow each other are joined to one."""
        parts: list[bytes] = []
        while self._next.kind == "string":
            parts.append(_unescaped(self._take()))
        return b"".join(parts)

    def _take(self) -> _Token:
        token = self._next
        if token.kind != "end":
            self._next = next(self._tokens)
        return token

    def _expect(self, kind: str, what: str) -> _Token:
        if self._next.kind != kind:
            raise self._unexpected(what)
        return self._take()

    def _expect_mark(self, mark: str) -> None:
        if self._next.kind != "mark" or self._next.text != mark:
            raise self._unexpected(f"{mark!r}")
        self._take()

    def _unexpected(self, wanted: str) -> TextFormatError:
        token = self._next
        shown_token = "the end" if token.kind == "end" else _shown(token.text)
        return TextFormatError(token.line, f"expected {wanted}, found {shown_token}")


def _tokens(text: str) -> Iterator[_Token]:
    position, line = 0, 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise TextFormatError(line, f"what stands here is no token: {_rest(text, position)}")
        kind = match.lastgroup or ""
        if kind != "space":
            yield _Token(kind, match[0], line)
        line += match[0].count("\n")
        position = match.end()
    yield _Token("end", "", line)


def _number(token: _Token) -> int | float:
    text = token.text
    try:
        if text[:2] in {"0x", "0X"}:
            return int(text, 16)
        if text.isdecimal():
            return int(text, 8 if text[0] == "0" else 10)
        return float(text.rstrip("fF"))
    except ValueError:  # 08, or more digits than Python reads
        raise TextFormatError(token.line, f"{_shown(text)} is no number") from None


def _unescaped(token: _Token) -> bytes:
    r"""Return the bytes of a quoted string: characters as UTF-8, \x and \ooo as single bytes."""
    parts: list[bytes] = []
    position, body = 0, token.text[1:-1]
    for escape in _ESCAPE.finditer(body):
        parts += [_utf8(body[position : escape.start()], token.line), _escaped(escape, token.line)]
        position = escape.end()
    return b"".join([*parts, _utf8(body[position:], token.line)])


def _escaped(escape: re.Match[str], line: int) -> bytes:
    if escape["simple"]:
        return _SIMPLE[escape["simple"]].encode()
    byte = int(escape["octal"], 8) if escape["octal"] else int(escape["hex"] or "0", 16)
    point = escape["short"] or escape["long"]
    code = int(point, 16) if point else 0
    if escape["bad"] or byte > 255 or code > 0x10FFFF:
        raise TextFormatError(line, f"{_shown(escape[0])} is no escape")
    return _utf8(chr(code), line) if point else bytes([byte])


def _utf8(text: str, line: int) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise TextFormatError(line, "half a character in a string") from None


def _rest(text: str, position: int) -> str:
    return _shown(text[position:].partition("\n")[0])


def _shown(text: str) -> str:
    return ascii(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}...")


T = TypeVar("T")


class Fields:
    """The fields of one message at ``path``; those that were not read go to ``ignored`` at the end."""

    def __init__(self, message: Message, path: str, ignored: dict[str, int]) -> None:
        self._message = message
        self._path = path
        self._ignored = ignored
        self._known: set[str] = set()

    def all(self, name: str) -> list[Field]:
        """Return the fields called ``name``."""
        self._known.add(name)
        return [each for each in self._message if each.name == name]

    def one(self, name: str, read: "Callable[[At], T]") -> T | None:
        """Return the value of the field ``name`` by ``read``; None where there is none."""
        matching = self.all(name)
        if len(matching) > 1:
            raise TextFormatError(matching[1].line, f"{self._path}{name}: given twice")
        return read(self._at(matching[0])) if matching else None

    def each(self, name: str, read: "Callable[[At], T]") -> list[T]:
        """Return the values of all fields ``name`` by ``read``."""
        return [read(self._at(each)) for each in self.all(name)]

    def line(self, name: str) -> int:
        """Return the line of the first field ``name``; 1 where there is none."""
        return next((each.line for each in self._message if each.name == name), 1)

    def ignore_rest(self) -> None:
        """Note the fields that were not read as ignored."""
        for each in self._message:
            if each.name not in self._known:
                self._ignored.setdefault(f"{self._path}{each.name}", each.line)

    def _at(self, field: Field) -> "At":
        return At(field, f"{self._path}{field.name}", self._ignored)


@dataclass(frozen=True)
class At:
    """A field, the path to it, and the mapping for ignored fields inside it."""

    field: Field
    path: str
    ignored: dict[str, int]

    def fault(self, message: str) -> TextFormatError:
        """Return an error with ``message`` that names this field and its line."""
        return TextFormatError(self.field.line, f"{self.path}: {message}")

    def fields(self) -> Fields:
        """Return the fields inside; TextFormatError where it has none."""
        if not isinstance(self.field.value, tuple):
            raise self.fault("expected fields in { }")
        return Fields(self.field.value, f"{self.path}.", self.ignored)


def whole(least: int, most: int) -> Callable[[At], int]:
    """Return a reader of whole numbers from ``least`` to ``most``."""

    def read(at: At) -> int:
        value = at.field.value
        if not isinstance(value, int) or not least <= value <= most:
            raise at.fault(f"expected a whole number from {least} to {most}")
        return value

    return read


def text(at: At) -> str:
    """Return the text of ``at``; raises TextFormatError if the value is no text."""
    if not isinstance(at.field.value, bytes):
        raise at.fault("expected a text in quotes")
    try:
        return at.field.value.decode()
    except UnicodeDecodeError:
        raise at.fault("not UTF-8") from None
