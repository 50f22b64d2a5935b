"""Recipes that users write: TOML files that become records."""

import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from models.errors import ModelError, first_fault

Record = TypeVar("Record", bound=BaseModel)


def read_recipe(path: Path, kind: type[Record]) -> Record:
    """Read a ``kind`` from the TOML file ``path``.

    Raises:
        ModelError: the file is missing, is not TOML, or a field is unknown or out of range.
    """
    try:
        return kind.model_validate(tomllib.loads(path.read_text("utf-8-sig")))
    except OSError as exc:
        raise ModelError(f"{path}: {exc.strerror or exc}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ModelError(f"{path}: not TOML: {exc}") from exc
    except ValidationError as exc:
        raise ModelError(f"{path}: {first_fault(exc)}") from exc
