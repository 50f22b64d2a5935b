"""Where settings come from: errors name a setting by the flag, the variable or the line that gave it."""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic_core import ErrorDetails

from models.errors import printable
from models.toml_files import TomlFile, read_toml
from server.errors import few, shown

PREFIX = "LAYERSTREAM_"
_CONFIG = "config"
_LONGEST_NAME = 60
_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def flag(name: str) -> str:
    """Return the flag of the setting ``name``."""
    return f"--{name.replace('_', '-')}"


def variable(name: str) -> str:
    """Return the variable of the setting ``name``."""
    return PREFIX + name.upper()


def read_file(path: Path) -> TomlFile:
    """Return what the file of settings ``path`` holds.

    Raises:
        ValueError: it cannot be read, is no UTF-8 or no TOML; the message has file and line.
    """
    try:
        if not path.is_file():
            raise ValueError(f"{path}: no such configuration file")
    except OSError as exc:  # a name that is too long
        raise ValueError(f"{path}: {exc.strerror or exc}") from exc
    return read_toml(path)


def _text(value: object) -> str:
    try:
        return str(value)
    except ValueError:  # an integer of more digits than Python writes
        return "a number too long to write"


def variables(environment: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """Return the variable that gives each setting, as it is written: case does not matter.

    Kubernetes puts the address of a service into the pods beside it: of one that is called layerstream
    into LAYERSTREAM_PORT (tcp://10.0.0.1:80), which then gives no setting.
    """
    names = {name.upper().removeprefix(PREFIX).lower(): name for name in _ours(environment)}
    return {
        setting: name
        for setting, name in names.items()
        if setting in known and not _ADDRESS.match(environment[name])
    }


def unknown_variables(known: Collection[str], environment: Mapping[str, str] = os.environ) -> str:
    """Return a message about LAYERSTREAM_* variables that are no setting; empty where there are none.

    They are no error: container platforms set variables that are named after a service.
    """
    settings = (*known, _CONFIG)
    unknown = sorted(set(_ours(environment)) - set(variables(environment, settings).values()))
    if not unknown:
        return ""
    named = (name + _meant(name, map(variable, settings)) for name in map(_short, unknown))
    return f"variables that are no setting: {few(list(named))}"


def _ours(environment: Mapping[str, str]) -> list[str]:
    return [name for name in environment if name.upper().startswith(PREFIX)]


def _short(name: str) -> str:
    return printable(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}...")


def _meant(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), 1, 0.8)
    return f" (did you mean {close[0]}?)" if close and close[0] != name else ""


@dataclass(frozen=True)
class Sources:
    """All sources of settings: flags by setting, names of variables by setting, a file."""

    flags: Mapping[str, Any]
    variables: Mapping[str, str]
    file: TomlFile | None

    def values(self, environment: Mapping[str, str], texts: Collection[str]) -> dict[str, Any]:
        """Return the values by setting: from flags, else from ``environment``, else from the file.

        ``texts``: settings for which a number in the file means what the same digits mean in quotes.
        """
        values = self.file.values if self.file else {}
        of_file = {name: _text(value) if name in texts else value for name, value in values.items()}
        of_variables = {name: environment[variable] for name, variable in self.variables.items()}
        return {**of_file, **of_variables, **self.flags}

    def faults(self, errors: Sequence[ErrorDetails], known: Collection[str]) -> str:
        """Return the first few errors in one line, each with its place."""
        texts = dict.fromkeys(self._fault(error, known) for error in errors)
        return few(list(texts), "; ")

    def _fault(self, error: ErrorDetails, known: Collection[str]) -> str:
        name = str(error["loc"][0])
        if error["type"] == "missing":
            unknown = unknown_variables(known)
            hint = f" ({unknown})" if unknown else ""
            other = error.get("ctx", {}).get("instead")
            instead = f", or {flag(other)} instead" if other else ""
            return f"{name}: not given; use {flag(name)} or {variable(name)}{instead}{hint}"
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
