"""The table of settings, made of Settings: what ``serve --help`` and docs/reference/settings.md show.

``python -m server.settings.table`` prints it as Markdown.
"""

import sys
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import ByteSize
from pydantic.fields import FieldInfo

from server.settings.groups import Default, Group, Takes
from server.settings.settings import Settings
from server.settings.sources import flag, variable

# The word for a value, by its type.
_VALUES: dict[Any, str] = {
    ByteSize: "SIZE",
    float: "SECONDS",
    int: "NUMBER",
    Path: "FOLDER",
    tuple: "NAMES",
}

_BY_MODEL = "[MODEL=]"


@dataclass(frozen=True)
class Setting:
    """One setting as help texts show it. ``value``: what its flag takes, as SIZE; empty: nothing."""

    name: str
    panel: str
    value: str
    default: str
    meaning: str

    @property
    def flag(self) -> str:
        return flag(self.name)

    @property
    def variable(self) -> str:
        return variable(self.name)

    @property
    def repeats(self) -> bool:
        """Whether its flag may be given several times: for a list, and for values by model."""
        return self.value.startswith(("NAMES", _BY_MODEL))

    @property
    def help(self) -> str:
        """The meaning, and the default where there is one."""
        default = f" Default: {self.default}." if self.value and self.default else ""
        return self.meaning + default


def settings_table() -> tuple[Setting, ...]:
    """Return all settings, in the order of ``Settings``."""
    return tuple(map(setting, Settings.model_fields))


def setting(name: str) -> Setting:
    """Return the setting called ``name``."""
    field = Settings.model_fields[name]
    return Setting(
        name, _group(name).title, _taken(field), _default(field), field.description or ""
    )


def _group(name: str) -> type[Group]:
    groups = (base for base in Settings.__bases__ if issubclass(base, Group))
    return next(group for group in groups if name in group.model_fields)


def _taken(field: FieldInfo) -> str:
    """Return the word for what the setting takes: its own, or that of its type."""
    words = (item.word for item in field.metadata if isinstance(item, Takes))
    return next(words, None) or _value(field.annotation)


def _value(annotation: Any) -> str:
    if annotation is bool:
        return ""
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    if get_origin(annotation) is dict:
        return f"{_BY_MODEL}{_value(get_args(annotation)[1])}"
    if get_origin(annotation) is Annotated:
        return _value(get_args(annotation)[0])
    named = (_VALUES.get(part) for part in (annotation, get_origin(annotation)))
    of_parts = map(_value, get_args(annotation))  # of an optional value
    return next(filter(None, (*named, *of_parts)), "NAME")


def _default(field: FieldInfo) -> str:
    """Return the default as users write it; empty where there is none."""
    if field.is_required():
        return ""
    words = next((item.words for item in field.metadata if isinstance(item, Default)), None)
    value = field.default
    if words is not None:
        return words
    if isinstance(value, bool):
        return str(value).lower()
    if _value(field.annotation) == "SIZE":
        return f"{value >> 20}MiB"
    return f"{value:g} s" if isinstance(value, float) else str(value)


def markdown() -> str:
    """Return the table of settings as Markdown, a part for each panel."""
    parts = []
    for panel, settings in groupby(settings_table(), lambda each: each.panel):
        rows = "\n".join(_row(each) for each in settings)
        parts.append(f"## {panel}\n\n{_HEAD}\n{rows}\n")
    return "\n".join(parts)


_HEAD = "| setting | flag | default | |\n|---|---|---|---|"


def _row(item: Setting) -> str:
    usage = f"{item.flag} {item.value}".rstrip().replace("|", r"\|")
    default = item.default or "must be given"
    return f"| `{item.name}` | `{usage}` | {default} | {item.meaning} |"


if __name__ == "__main__":
    sys.stdout.write(markdown())
