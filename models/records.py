"""Records of files that are not trusted: plain dataclasses, read from JSON, checked by annotations.

What serves and runs packs reads them so. Pydantic reads the same classes, with the same limits, where
people write them (models/toml_files.py): its machinery takes more memory than all records of a pack.

An annotation is bool, int, float, str, a ``Literal``, a tuple, a dict by strings, a dataclass, a
union of one of these and None, or of dataclasses, of which that is meant which has the fields;
``Annotated`` with what is below.
"""

import dataclasses
import functools
import json
import math
import re
import types
import typing
from collections.abc import Callable, Hashable, Iterator, Mapping, Set
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, cast, overload

import orjson

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

T = TypeVar("T")
#: What was read so far, by itself; what is equal to it is that object again.
Same = dict[Any, Any]
_Read = Callable[[Any, Same], Any]


class FieldError(ValueError):
    """A record is not what its annotations say: ``path`` to the field, and ``reason``."""

    def __init__(self, reason: str, *path: str | int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path

    def within(self, field: str | int) -> "FieldError":
        """Return the same of what lies in ``field``."""
        return FieldError(self.reason, field, *self.path)

    def __str__(self) -> str:
        field = ".".join(map(str, self.path))
        return f"{field}: {self.reason}" if field else self.reason


class NotJsonError(FieldError):
    """What was read is no JSON."""


# What annotations say beside types. Pydantic asks each for its schema.


@dataclass(frozen=True)
class Bounds:
    """Bounds of a number, which is finite, or of the length of a tuple or dict."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    min_length: int | None = None
    max_length: int | None = None

    def reading(self, read: _Read) -> _Read:
        """Return ``read`` with these limits."""
        checks = [_CHECKS[name](limit) for name, limit in self._limits().items()]
        minimum = self.ge

        def bounded_below(value: Any, same: Same) -> Any:
            result = read(value, same)
            if result < minimum:
                raise FieldError(checks[0][1])
            return result

        def limited(value: Any, same: Same) -> Any:
            result = read(value, same)
            for is_right, reason in checks:
                if not is_right(result):
                    raise FieldError(reason)
            return result

        # Most of what a manifest says has this limit alone.
        return bounded_below if minimum is not None and len(checks) == 1 else limited

    def _limits(self) -> dict[str, Any]:
        fields = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: limit for name, limit in fields if limit is not None}

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> "CoreSchema":
        schema: dict[str, Any] = {**handler(source), **self._limits()}
        if schema["type"] == "float":
            schema["allow_inf_nan"] = False
        return cast("CoreSchema", schema)


def _bound(word: str, is_right: Callable[[Any, Any], bool]) -> Callable[[Any], Any]:
    return lambda limit: (
        lambda value: is_right(value, limit),
        f"Input should be {word} {limit}",
    )


_CHECKS: Mapping[str, Callable[[Any], tuple[Callable[[Any], bool], str]]] = {
    "ge": _bound("greater than or equal to", lambda value, limit: value >= limit),
    "gt": _bound("greater than", lambda value, limit: value > limit),
    "le": _bound("less than or equal to", lambda value, limit: value <= limit),
    "lt": _bound("less than", lambda value, limit: value < limit),
    "min_length": lambda limit: (
        lambda value: len(value) >= limit,
        f"Input should have at least {limit} items",
    ),
    "max_length": lambda limit: (
        lambda value: len(value) <= limit,
        f"Input should have at most {limit} items",
    ),
}


@dataclass(frozen=True)
class Check:
    """``of`` returns what is read, or what stands for it; it raises ValueError where it is wrong."""

    of: Callable[[Any], Any]

    def reading(self, read: _Read) -> _Read:
        """Return ``read`` with the check."""

        def checked(value: Any, same: Same) -> Any:
            result = read(value, same)
            try:
                return self.of(result)
            except ValueError as exc:
                raise FieldError(str(exc)) from None

        return checked

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> "CoreSchema":
        from pydantic_core.core_schema import no_info_after_validator_function

        return no_info_after_validator_function(self.of, handler(source))


class _Shared:
    """See ``SHARED``."""

    def reading(self, read: _Read) -> _Read:
        """Return ``read``, which gives one object for what is equal."""

        def shared(value: Any, same: Same) -> Any:
            result: Hashable = read(value, same)
            return same.setdefault(result, result)

        return shared


#: Marks fields whose equal values are to be one object.
SHARED = _Shared()


class _ByKind:
    """See ``BY_KIND``."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> "CoreSchema":
        from pydantic import Field

        return handler.generate_schema(Annotated[source, Field(discriminator="kind")])


#: Marks a union of dataclasses that their field ``kind`` tells apart: pydantic's messages are shorter so.
BY_KIND = _ByKind()

PositiveInt = Annotated[int, Bounds(gt=0)]
NonNegativeInt = Annotated[int, Bounds(ge=0)]
FiniteFloat = Annotated[float, Bounds()]
PositiveFloat = Annotated[float, Bounds(gt=0)]


class Record:
    """A dataclass whose file says its fields and no others."""

    __slots__ = ()
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  Pydantic's name


# Reading.


def parse(text: bytes | str) -> Any:
    """Return the JSON document ``text``.

    Raises:
        NotJsonError: it is none, or not UTF-8.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise NotJsonError(f"not JSON: {exc}") from None


@overload
def read_record(kind: type[T], value: Any) -> T: ...
@overload
def read_record(kind: Any, value: Any) -> Any: ...
def read_record(kind: Any, value: Any) -> Any:
    """Return the ``kind``, a dataclass or another annotation, that the document ``value`` holds.

    Raises:
        FieldError: it is none; the message names the field.
    """
    return _reader(kind)(value, {})


def read_json(kind: type[T], text: bytes | str) -> T:
    """Return the dataclass ``kind`` that ``text`` is as JSON; raises as ``parse`` and ``read_record``.

    Its lists are read one item at a time: the whole document would take several times what records do.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode()
        if _ESCAPED_HALF.search(text):
            parse(text)  # halves of characters must be pairs
        record = _Items(text).read(_dataclass(cast(Any, kind)))
    except FieldError:
        raise
    except RecursionError:
        raise NotJsonError("not JSON that can be read: too deep") from None
    except ValueError as exc:
        raise NotJsonError(f"not JSON: {exc}") from None
    return cast(T, record)


#: The first half of a character beyond 16 bits, or a wrong one.
_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_SPACE = re.compile(r"[ \t\n\r]*")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


class _Items:
    """Reads a JSON object, and lists in it item by item, from ``text``."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._offset = 0
        self._decode = json.JSONDecoder(parse_constant=_no_constant).raw_decode

    def read(self, record: "_Dataclass") -> Any:
        """Return the ``record`` that all of the text is."""
        if self._next() != "{":
            self._value()
            raise FieldError("Input should be an object")
        same: Same = {}
        values = {}
        for _ in self._items("{}"):
            name = self._value()
            self._take(":")
            read = record.reader(name)
            item = record.items.get(name)
            try:
                if item is not None and self._next() == "[":
                    values[name] = self._list(item, same)
                else:
                    values[name] = read(self._value(), same)
            except FieldError as exc:
                raise exc.within(name) from None
        if self._next():
            raise ValueError(f"more text behind it: character {self._offset}")
        return record.build(values)

    def _list(self, read: _Read, same: Same) -> tuple[Any, ...]:
        values: list[Any] = []
        try:
            values.extend(read(self._value(), same) for _ in self._items("[]"))
        except FieldError as exc:
            raise exc.within(len(values)) from None
        return tuple(values)

    def _items(self, brackets: str) -> Iterator[None]:
        """Yield before each item between ``brackets``, which the caller then reads."""
        self._take(brackets[0])
        if self._next() != brackets[1]:
            yield
            while self._next() == ",":
                self._take(",")
                yield
        self._take(brackets[1])

    def _value(self) -> Any:
        self._next()
        value, self._offset = self._decode(self._text, self._offset)
        return value

    def _next(self) -> str:
        """Return the next character that is no space; empty at the end."""
        space = _SPACE.match(self._text, self._offset)
        self._offset = space.end() if space else self._offset
        return self._text[self._offset : self._offset + 1]

    def _take(self, character: str) -> None:
        if self._next() != character:
            raise ValueError(f"expected {character!r}: character {self._offset}")
        self._offset += 1


@functools.cache
def _reader(kind: Any) -> _Read:
    """Return what reads a value of ``kind``, which it is made for once."""
    if dataclasses.is_dataclass(kind):
        return _dataclass(cast(Any, kind)).read
    if kind in _SCALARS:
        return _scalar(kind)
    create = _PRODUCERS.get(typing.get_origin(kind))
    if create is None:
        raise TypeError(f"no JSON is read as {kind}")
    return create(typing.get_args(kind))


_SCALARS: Mapping[Any, str] = {
    bool: "a valid boolean",
    int: "a valid integer",
    float: "a valid number",
    str: "a valid string",
    type(None): "null",
}


def _scalar(kind: Any) -> _Read:
    reason = f"Input should be {_SCALARS[kind]}"

    def read(value: Any, same: Same) -> Any:
        if type(value) is not kind:  # bool is no int here
            raise FieldError(reason)
        return value

    def read_float(value: Any, same: Same) -> float:
        if type(value) not in (float, int):
            raise FieldError(reason)
        as_float = float(value)
        if not math.isfinite(as_float):
            raise FieldError("Input should be a finite number")
        return as_float

    return read_float if kind is float else read


def _annotated(arguments: tuple[Any, ...]) -> _Read:
    kind, *marks = arguments
    read = _reader(kind)
    for mark in marks:
        if isinstance(mark, Bounds | Check | _Shared):
            read = mark.reading(read)
    return read


def _literal(allowed: tuple[Any, ...]) -> _Read:
    *first, last = map(repr, allowed)
    reason = f"Input should be {', '.join(first)}{' or ' * bool(first)}{last}"
    words = {(type(value), value): value for value in allowed}

    def read(value: Any, same: Same) -> Any:
        if not isinstance(value, Hashable) or (type(value), value) not in words:
            raise FieldError(reason)
        return words[type(value), value]

    return read


def _tuple(kinds: tuple[Any, ...]) -> _Read:
    repeated = _reader(kinds[0]) if kinds[-1] is Ellipsis else None
    reads = () if repeated else tuple(map(_reader, kinds))

    def read(value: Any, same: Same) -> tuple[Any, ...]:
        if type(value) not in (list, tuple):
            raise FieldError("Input should be a valid array")
        if repeated is None and len(value) != len(reads):
            raise FieldError(f"Input should have {len(reads)} items, not {len(value)}")
        result: list[Any] = []
        try:
            if repeated is not None:
                for item in value:
                    result.append(repeated(item, same))  # noqa: PERF401  its length says what failed
            else:
                for read_item, item in zip(reads, value, strict=True):
                    result.append(read_item(item, same))
        except FieldError as exc:
            raise exc.within(len(result)) from None
        return tuple(result)

    return read


def _dict(kinds: tuple[Any, ...]) -> _Read:
    read_item = _reader(kinds[1])

    def read(value: Any, same: Same) -> dict[str, Any]:
        if type(value) is not dict:
            raise FieldError("Input should be an object")
        result = {}
        for key, item in value.items():
            try:
                result[key] = read_item(item, same)
            except FieldError as exc:
                raise exc.within(key) from None
        return result

    return read


def _union(kinds: tuple[Any, ...]) -> _Read:
    others = [kind for kind in kinds if kind is not type(None)]
    read = _reader(others[0]) if len(others) == 1 else _one_of(others)
    if len(others) == len(kinds):
        return read
    return lambda value, same: None if value is None else read(value, same)


def _one_of(kinds: list[Any]) -> _Read:
    """Return what reads one of ``kinds``: dataclasses, of which the first is taken that has the fields."""
    if all(typing.get_origin(kind) is Literal for kind in kinds):
        return _literal(tuple(value for kind in kinds for value in typing.get_args(kind)))
    if not all(dataclasses.is_dataclass(kind) for kind in kinds):
        return _scalar_of(kinds)
    records = [_dataclass(kind) for kind in kinds]

    def read(value: Any, same: Same) -> Any:
        record = next((record for record in records if record.fits(value)), records[0])
        return record.read(value, same)

    return read


def _scalar_of(kinds: list[Any]) -> _Read:
    reads = [(kind, _reader(kind)) for kind in kinds]

    def read(value: Any, same: Same) -> Any:
        for kind, read_kind in reads:
            if type(value) is kind:
                return read_kind(value, same)
        return reads[-1][1](value, same)

    return read


@functools.cache
def _dataclass(kind: Any) -> "_Dataclass":
    """Return what reads the dataclass ``kind``, which is created once."""
    return _Dataclass(kind)


_PRODUCERS: Mapping[Any, Callable[[tuple[Any, ...]], _Read]] = {
    Annotated: _annotated,
    Literal: _literal,
    tuple: _tuple,
    dict: _dict,
    Mapping: _dict,
    Union: _union,
    types.UnionType: _union,
}


class _Dataclass:
    """Reads the dataclass ``kind``; ``items``: what reads items of its lists, by field."""

    def __init__(self, kind: Any) -> None:
        annotations = typing.get_type_hints(kind, include_extras=True)
        fields = [field for field in dataclasses.fields(kind) if field.init]
        self._kind = kind
        self._readers = {field.name: _reader(annotations[field.name]) for field in fields}
        self._words = {
            name: read
            for name, read in self._readers.items()
            if typing.get_origin(annotations[name]) is Literal
        }
        self._required = [
            field.name
            for field in fields
            if field.default is MISSING and field.default_factory is MISSING
        ]
        self.items = {
            name: _reader(typing.get_args(annotations[name])[0])
            for name in self._readers
            if typing.get_origin(annotations[name]) is tuple
            and typing.get_args(annotations[name])[-1] is Ellipsis
        }

    def fits(self, value: Any) -> bool:
        """Return whether ``value`` has fields of this one alone, and its choices among words are its."""
        if type(value) is not dict or not self._readers.keys() >= value.keys():
            return False
        try:
            for name in self._words.keys() & value.keys():
                self._words[name](value[name], {})
        except FieldError:
            return False
        return all(name in value for name in self._required)

    def reader(self, name: str) -> _Read:
        """Return what reads field ``name``; raises FieldError where there is none."""
        read = self._readers.get(name)
        if read is None:
            raise FieldError("Extra inputs are not permitted", name)
        return read

    def read(self, value: Any, same: Same) -> Any:
        if type(value) is not dict:
            raise FieldError("Input should be an object")
        values = {}
        readers = self._readers
        for name, item in value.items():
            read = readers.get(name) or self.reader(name)
            try:
                values[name] = read(item, same)
            except FieldError as exc:
                raise exc.within(name) from None
        return self.build(values)

    def build(self, values: dict[str, Any]) -> Any:
        """Return the record of ``values``, which were read; raises FieldError where it is none."""
        for name in self._required:
            if name not in values:
                raise FieldError("Field required", name)
        try:
            return self._kind(**values)
        except ValueError as exc:
            raise FieldError(str(exc)) from None


# Writing.


def plain(value: Any, *, without_defaults: bool = False, leave_out: Set[str] = frozenset()) -> Any:
    """Return ``value``, a record, as a document: dicts and lists.

    Args:
        value: the record, or what one holds.
        without_defaults: leave out fields that hold their default, of records inside, too.
        leave_out: fields of ``value`` itself, not of records inside.
    """
    if isinstance(value, tuple | list):
        return [plain(item, without_defaults=without_defaults) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item, without_defaults=without_defaults) for key, item in value.items()}
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    document = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if field.name in leave_out or (without_defaults and item == _default(field)):
            continue
        document[field.name] = plain(item, without_defaults=without_defaults)
    return document


def _default(field: "dataclasses.Field[Any]") -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def to_json(document: Any) -> str:
    """Return a ``plain`` document as JSON in one line."""
    return orjson.dumps(document).decode()
