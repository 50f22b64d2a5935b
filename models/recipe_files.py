"""Recipes that users write: TOML files that become records, or a fault in plain words."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from models.errors import ModelError
from models.toml_file import TomlFile, read_toml

Record = TypeVar("Record", bound=BaseModel)
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
    try:
        return kind.model_validate(file.values)
    except ValidationError as exc:
        fault = plain_fault(exc, file.values)
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
    try:
        return kind.model_validate(given)
    except ValidationError as exc:
        raise ModelError(f"{kind.__name__.lower()}: {plain_fault(exc, given)}") from exc


def _place(file: TomlFile, fault: str) -> str:
    """Return the file and the line of what ``fault`` begins with; of tables in a list it says which."""
    key = fault.partition(":")[0].partition(" ")[0]
    return str(file.path) if _holds_tables(file.values.get(key)) else file.place(key)


def _holds_tables(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def plain_fault(exc: ValidationError, values: Mapping[str, Any]) -> str:
    """Return what is wrong first in ``values``: ``model 'm': layer 'b': colour: no such key``."""
    errors = exc.errors()
    found = [(_path(values, error), error) for error in errors]
    first = found[0][0]
    # What may be a text or a table is wrong in two ways: said is how the table is, where it is one.
    inside = [item for item in found if item[0][: len(first)] == first]
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
