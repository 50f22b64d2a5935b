"""TOML that people write: what is wrong is named with file and line."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        found = next((number for number, line in lines if gives.match(line)), None)
        return f"{self.path}:{found}" if found else str(self.path)


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
        found = _PLACE.search(message)
        line, column = found.groups() if found else (str(text.count("\n") + 1), "")
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
