"""Where settings come from: a wrong one is named as it was given, by flag, variable or line of a file."""

import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic_core import ErrorDetails

from models.errors import printable
from server.errors import few, shown

PREFIX = "LAYERSTREAM_"
_CONFIG = "config"
_LONGEST_NAME = 60
_MAX_FILE_BYTES = 1 << 20
_TOML_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)")


def flag(name: str) -> str:
    """Return the flag of the setting ``name``."""
    return f"--{name.replace('_', '-')}"


def variable(name: str) -> str:
    """Return the variable of the setting ``name``."""
    return PREFIX + name.upper()


@dataclass(frozen=True)
class File:
    """A TOML file of settings: its values, and its text for the lines that they stand on."""

    path: Path
    text: str
    values: Mapping[str, Any]

    def place(self, key: str) -> str:
        """Return ``FILE:LINE`` of the first line that gives ``key``, a value or a table."""
        gives = re.compile(rf"\s*(\[+\s*)?([\"']?){re.escape(key)}\2\s*[].=]")
        lines = enumerate(self.text.splitlines(), 1)
        found = next((number for number, line in lines if gives.match(line)), None)
        return f"{self.path}:{found}" if found else str(self.path)


def read_file(path: Path) -> File:
    """Return what the TOML file ``path`` holds.

    Raises:
        ValueError: it cannot be read, is no UTF-8 or no TOML; the message has file and line.
    """
    try:
        if not path.is_file():
            raise ValueError(f"{path}: no such configuration file")
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise ValueError(f"{path}: {exc.strerror or exc}") from exc
    if len(data) > _MAX_FILE_BYTES:
        raise ValueError(f"{path}: larger than {_MAX_FILE_BYTES} bytes: no configuration file")
    text = _decoded(path, data)
    try:
        return File(path, text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as exc:
        message = str(exc)
        found = _TOML_PLACE.search(message)
        line, column = found.groups() if found else (str(text.count("\n") + 1), "")
        said = _TOML_PLACE.sub(f" in column {column}", message)
        raise ValueError(f"{path}:{line}: not TOML: {said}") from exc
    except RecursionError as exc:
        raise ValueError(f"{path}: not TOML that can be read: arrays or tables too deep") from exc
    except ValueError as exc:  # Python's own limit on the digits of an integer
        raise ValueError(f"{path}: not TOML that can be read: a number is too long") from exc


def _text(value: object) -> str:
    try:
        return str(value)
    except ValueError:  # an integer of more digits than Python writes
        return "a number too long to write"


def _decoded(path: Path, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise ValueError(f"{path}:{line}: not UTF-8: byte 0x{data[exc.start]:02x}") from exc


def variables(environment: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """Return the variable that gives each setting, as it is written: case does not matter."""
    names = {name.upper().removeprefix(PREFIX).lower(): name for name in _ours(environment)}
    return {setting: name for setting, name in names.items() if setting in known}


def unknown_variables(known: Collection[str], environment: Mapping[str, str] = os.environ) -> str:
    """Return what to say of LAYERSTREAM_* variables that are no setting; empty where there are none.

    They are no error: container platforms put variables there that are named after a service.
    """
    settings = (*known, _CONFIG)
    found = sorted(set(_ours(environment)) - set(variables(environment, settings).values()))
    if not found:
        return ""
    named = (name + _meant(name, map(variable, settings)) for name in map(_short, found))
    return f"variables that are no setting: {few(list(named))}"


def _ours(environment: Mapping[str, str]) -> list[str]:
    return [name for name in environment if name.upper().startswith(PREFIX)]


def _short(name: str) -> str:
    return printable(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}...")


def _meant(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), 1, 0.8)
    return f" (did you mean {close[0]}?)" if close else ""


@dataclass(frozen=True)
class Sources:
    """What was given: flags by setting, names of variables by setting, a file."""

    flags: Mapping[str, Any]
    variables: Mapping[str, str]
    file: File | None

    def beside_variables(self, texts: Collection[str]) -> dict[str, Any]:
        """Return flags, and values of the file that no variable overrides.

        ``texts``: settings that mean the same as a number of the file as in quotes, or as a flag.
        """
        values = self.file.values if self.file else {}
        free = {
            name: _text(value) if name in texts else value
            for name, value in values.items()
            if name not in self.variables
        }
        return {**free, **self.flags}

    def faults(self, errors: Sequence[ErrorDetails], known: Collection[str]) -> str:
        """Return what is wrong, in one line: the first few faults, each with its place."""
        texts = dict.fromkeys(self._fault(error, known) for error in errors)
        return few(list(texts), "; ")

    def _fault(self, error: ErrorDetails, known: Collection[str]) -> str:
        name = str(error["loc"][0])
        if error["type"] == "missing":
            unknown = unknown_variables(known)
            hint = f" ({unknown})" if unknown else ""
            return f"{name}: not given; use {flag(name)} or {variable(name)}{hint}"
        place = self._place(name)
        if error["type"] == "extra_forbidden":
            return f"{place}: no such setting{_meant(_short(name), known)}"
        message = error["msg"].removeprefix("Value error, ")
        value = error["input"]
        is_quoted = isinstance(value, str) and repr(value) in message
        quoted = "" if is_quoted else f", not {shown(_text(value))}"
        return f"{place}: {message}{quoted}"

    def _place(self, name: str) -> str:
        if name in self.flags:
            return flag(name)
        if name in self.variables:
            return self.variables[name]
        return f"{self.file.place(name)}: {_short(name)}" if self.file else name
