"""TOML that people write: read, and made into records or a fault in plain words with file and line."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from models.errors import ModelError

if TYPE_CHECKING:  # what only reads packs has no recipes, and no room for it
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_MAX_BYTES = 1 << 20
_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)")


@dataclass(frozen=True)
class TomlFile:
    """Its values, and its text for the lines that they stand on."""

    path: Path
    text: str
    values: Mapping[str, Any]

    def place(self, key: str) -> str:
        """Return ``FILE:LINE`` of the first line that gives ``key``, a value or a table."""
        gives = re.compile(rf"\s*(\[+\s*)?([\"']?){re.escape(key)}\2\s*[].=]")
        lines = enumerate(self.text.splitlines(), 1)
        number_of_line = next((number for number, line in lines if gives.match(line)), None)
        return f"{self.path}:{number_of_line}" if number_of_line else str(self.path)


def read_toml(path: Path) -> TomlFile:
    """Return what the TOML file ``path`` holds.

    Raises:
        ValueError: it cannot be read, is too large, no UTF-8 or no TOML; the message has file and line.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as exc:
        raise ValueError(f"{path}: {exc.strerror or exc}") from exc
    if len(data) > _MAX_BYTES:
        raise ValueError(f"{path}: larger than {_MAX_BYTES} bytes: too large for what people write")
    text = _decoded(path, data)
    try:
        return TomlFile(path, text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as exc:
        message = str(exc)
        place = _PLACE.search(message)
        line, column = place.groups() if place else (str(text.count("\n") + 1), "")
        said = _PLACE.sub(f" in column {column}", message)
        raise ValueError(f"{path}:{line}: not TOML: {said}") from exc
    except RecursionError as exc:
        raise ValueError(f"{path}: not TOML that can be read: arrays or tables too deep") from exc
    except ValueError as exc:  # Python's own limit on the digits of an integer
        raise ValueError(f"{path}: not TOML that can be read: a number is too long") from exc


def _decoded(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise ValueError(f"{path}:{line}: not UTF-8: byte 0x{data[exc.start]:02x}") from exc


# Recipes that users write: TOML files that become records, or a fault in plain words.

Record = TypeVar("Record")
_LONGEST = 60
_REASONS = {
    "missing": "missing",
    "extra_forbidden": "no such key",
    "unexpected_keyword_argument": "no such key",
    "string_type": "not a text",
    "string_too_short": "empty",
    "bool_type": "not true or false",
    "int_type": "not a whole number",
    "int_from_float": "not a whole number",
    "int_parsing": "not a whole number",
    "float_type": "not a number",
    "float_parsing": "not a number",
    "finite_number": "not a number",
    "tuple_type": "not a list",
    "list_type": "not a list",
    "dict_type": "not a table",
    "model_type": "not a table",
    "dataclass_type": "not a table",
    "greater_than": "not above {gt}",
    "greater_than_equal": "below {ge}",
    "less_than": "not below {lt}",
    "less_than_equal": "above {le}",
    "literal_error": "not {expected}",
    "union_tag_invalid": "kind: not {expected_tags}",
    "union_tag_not_found": "kind: missing",
    "too_long": "more than {max_length} values",
    "too_short": "fewer than {min_length} values",
}
_OF_KEYS = {"missing", "extra_forbidden", "unexpected_keyword_argument", "string_too_short"}


def read_recipe(path: Path, kind: type[Record]) -> Record:
    """Read a ``kind`` from the TOML file ``path``.

    Raises:
        ModelError: the file is missing, is not TOML, or a field is unknown or out of range.
    """
    try:
        file = read_toml(path)
    except ValueError as exc:
        raise ModelError(str(exc)) from exc
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(file.values)
    except ValidationError as exc:
        fault = _plain_fault(exc, file.values)
        raise ModelError(f"{_place(file, fault)}: {fault}") from exc


def recipe_of(given: str | Path | Mapping[str, Any] | None, kind: type[Record]) -> Record | None:
    """Return a ``kind`` of what is ``given``: a TOML file, or what would be in it; None of nothing.

    Raises:
        ModelError: as ``read_recipe``.
    """
    if given is None:
        return None
    if isinstance(given, str | Path):
        return read_recipe(Path(given), kind)
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(given)
    except ValidationError as exc:
        raise ModelError(f"{kind.__name__.lower()}: {_plain_fault(exc, given)}") from exc


def _place(file: TomlFile, fault: str) -> str:
    """Return the file and the line of what ``fault`` begins with; of tables in a list it says which."""
    key = fault.partition(":")[0].partition(" ")[0]
    return str(file.path) if _holds_tables(file.values.get(key)) else file.place(key)


def _holds_tables(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _plain_fault(exc: "ValidationError", values: Mapping[str, Any]) -> str:
    """Return what is wrong first in ``values``: ``model 'm': layer 'b': colour: no such key``."""
    errors = exc.errors()
    faults = [(_path(values, error), error) for error in errors]
    first = faults[0][0]
    # What may be a text or a table is wrong in two ways: said is how the table is, where it is one.
    inside = [item for item in faults if item[0][: len(first)] == first]
    path = max((path for path, _ in inside), key=len)
    reasons = dict.fromkeys(_reason(error) for own, error in inside if own == path)
    return ": ".join([*_words(values, path), ", ".join(reasons)])


def _path(values: Any, error: "ErrorDetails") -> tuple[str | int, ...]:
    """Return the keys and positions where ``error`` is, without the names of what was tried there."""
    path: list[str | int] = []
    missing = error["loc"][-1] if error["type"] == "missing" else None
    for part in error["loc"]:
        if isinstance(values, Mapping) and (part in values or part == missing):
            values = values.get(str(part))
        elif isinstance(values, list) and isinstance(part, int):
            values = values[part] if part < len(values) else None
        else:
            continue
        path.append(part)
    return tuple(path)


def _words(values: Any, path: Sequence[str | int]) -> list[str]:
    """Return ``path`` for people: tables in a list by their names, what has none by its position."""
    words: list[str] = []
    for part in path:
        if isinstance(part, str):
            values = values.get(part) if isinstance(values, Mapping) else None
            words.append(part[:_LONGEST])
            continue
        values = values[part] if part < len(values) else None
        is_table = isinstance(values, Mapping)
        name = values.get("name") if is_table else None
        called = repr(name[:_LONGEST]) if isinstance(name, str) else str(part + 1)
        words[-1] = f"{words[-1].removesuffix('s') if is_table else words[-1]} {called}"
    return words


def _reason(error: "ErrorDetails") -> str:
    plain = _REASONS.get(error["type"])
    if plain is None:
        return error["msg"].removeprefix("Value error, ")
    said = plain.format(**error.get("ctx", {}))
    value = error["input"]
    if isinstance(value, str | int | float) and error["type"] not in _OF_KEYS:
        return (
            f"{said}: {str(value)[:_LONGEST]!r}" if isinstance(value, str) else f"{said}: {value}"
        )
    return said
