"""Recipes that users write: TOML files that become records."""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from models.errors import ModelError
from models.recipe_faults import plain_fault
from models.toml_file import TomlFile, read_toml

Record = TypeVar("Record", bound=BaseModel)


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


def _place(file: TomlFile, fault: str) -> str:
    """Return the file and the line of what ``fault`` begins with; of tables in a list it says which."""
    key = fault.partition(":")[0].partition(" ")[0]
    return str(file.path) if _holds_tables(file.values.get(key)) else file.place(key)


def _holds_tables(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)
