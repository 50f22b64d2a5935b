"""Protobuf's text format, as config.pbtxt is written: text to fields, and fields by name, with their types.

The library's own parser needs the whole schema of Triton's configuration and says nothing of fields that it
ignores. So its tokens are read here: https://protobuf.dev/reference/protobuf/textformat-spec/, with a bound
on nesting.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from google.protobuf.text_format import Tokenizer

_MOST_NESTED = 32
_LONGEST_SHOWN = 40
_CLOSING = {"{": "}", "<": ">"}
_INTEGER = re.compile(r"-?(0[xX][0-9a-fA-F]+|[0-9]+)")


class TextFormatError(ValueError):
    """The text is not what the format asks for; ``line`` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class Field:
    """One field as it was written; a list of several values is a field for each."""

    name: str
    value: "Value"
    line: int


#: Fields in the order of the text; a name may occur several times.
Message = tuple[Field, ...]
#: A text in quotes is bytes; a word without them (true, ENUM_VALUE) is a str.
Value = bytes | int | float | str | Message


def parse(text: str) -> Message:
    """Return the fields of ``text``.

    Raises:
        TextFormatError: it is not in the text format; the message quotes the token.
    """
    # It takes some MiB of memory, which servers without a config.pbtxt do not need.
    from google.protobuf.text_format import ParseError, Tokenizer

    tokens = Tokenizer(text.split("\n"))
    try:
        return _fields(tokens, "", 0)
    except ParseError:
        raise _unexpected(tokens, "a field or a value") from None


def _fields(tokens: "Tokenizer", closing: str, depth: int) -> Message:
    """Return fields up to the mark ``closing``, which is taken, too; empty: to the end."""
    if depth > _MOST_NESTED:
        raise TextFormatError(_line(tokens), f"nested more than {_MOST_NESTED} deep")
    fields: list[Field] = []
    while tokens.token != closing:
        line, name = _line(tokens), _name(tokens)
        fields += [Field(name, value, line) for value in _values(tokens, depth)]
        if not tokens.TryConsume(";"):
            tokens.TryConsume(",")
    tokens.NextToken()
    return tuple(fields)


def _name(tokens: "Tokenizer") -> str:
    """Return a field's name; that of an extension or a type with its brackets."""
    if not tokens.TryConsume("["):
        return tokens.ConsumeIdentifier()
    parts = ["["]
    while not tokens.TryConsume("]"):
        if not (tokens.token in {".", "/"} or tokens.token[:1].isalpha()):
            raise _unexpected(tokens, "']'")
        parts.append(tokens.token)
        tokens.NextToken()
    return "".join([*parts, "]"])


def _values(tokens: "Tokenizer", depth: int) -> list[Value]:
    """Return what stands behind a name: of ``[a, b]`` each; messages need no colon before them."""
    has_colon = tokens.TryConsume(":")
    if not tokens.TryConsume("["):
        return [_value(tokens, has_colon, depth)]
    values: list[Value] = []
    while not tokens.TryConsume("]"):
        if values and not tokens.TryConsume(","):
            raise _unexpected(tokens, "','")
        values.append(_value(tokens, has_colon, depth))
    return values


def _value(tokens: "Tokenizer", may_be_scalar: bool, depth: int) -> Value:
    token = tokens.token
    if token in _CLOSING:
        tokens.NextToken()
        return _fields(tokens, _CLOSING[token], depth + 1)
    if not may_be_scalar:
        raise _unexpected(tokens, "':' or '{'")
    if token[:1] in {'"', "'"}:
        return tokens.ConsumeByteString()
    if token[:1].isalpha() or token[:1] == "_":
        return tokens.ConsumeIdentifier()
    return tokens.ConsumeInteger() if _INTEGER.fullmatch(token) else tokens.ConsumeFloat()


def _unexpected(tokens: "Tokenizer", wanted: str) -> TextFormatError:
    found = "the end" if tokens.AtEnd() else _shown(tokens.token)
    return TextFormatError(_line(tokens), f"expected {wanted}, found {found}")


def _line(tokens: "Tokenizer") -> int:
    line: int = cast(Any, tokens).ParseError("").GetLine()  # its stub takes something else
    return line


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

    def ignore(self, field: "At") -> None:
        """Note a field that was read as ignored."""
        self._ignored.setdefault(field.path, field.field.line)

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
