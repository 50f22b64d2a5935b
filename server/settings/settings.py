"""Settings of the service: flags first, then LAYERSTREAM_* variables, then a TOML file, then defaults.

A setting has one name: flag, variable and key of the file are made of it. What is said of it anywhere is
its description in its group (server/settings/table.py).
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, ValidationError, ValidationInfo, field_validator

from server.settings.groups.access import AccessSettings
from server.settings.groups.limits import LimitSettings
from server.settings.groups.logs import LogSettings
from server.settings.groups.memory import MemorySettings
from server.settings.groups.models import ModelSettings
from server.settings.groups.network import NetworkSettings
from server.settings.groups.scheduling import SchedulingSettings
from server.settings.groups.uploads import UploadSettings
from server.settings.sizes import parse_size
from server.settings.sources import PREFIX, Sources, read_file, unknown_variables, variables

_log = logging.getLogger(__name__)

CONFIG_VARIABLE = f"{PREFIX}CONFIG"
_SIZES = ("memory", "budget", "request_memory", "max_body", "max_upload", "compile_memory")


class SettingsError(Exception):
    """A setting is missing or not what it should be; the message names it, and where it was given."""


# Python finds the fields of the last base first: the order is that of the table, and of what a field may
# know of others when it is checked.
class Settings(
    LogSettings,
    UploadSettings,
    LimitSettings,
    AccessSettings,
    NetworkSettings,
    SchedulingSettings,
    ModelSettings,
    MemorySettings,
):
    """Everything an operator can choose. Sizes take units, times are seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: object, info: ValidationInfo) -> object:
        is_switch = cls.model_fields[info.field_name or ""].annotation is bool
        if isinstance(value, bool) and not is_switch:
            raise ValueError("true or false is for switches")
        return value

    @field_validator(*_SIZES, mode="before")
    @classmethod
    def _size(cls, value: object) -> object:
        return parse_size(value) if isinstance(value, str) else value


def load_settings(flags: Mapping[str, Any], config: Path | None = None) -> Settings:
    """Return the settings from ``flags`` (None values count as absent), environment and file.

    The file is ``config``, or what LAYERSTREAM_CONFIG names.

    Raises:
        SettingsError: values are missing or wrong, or the file cannot be read.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    named = os.environ.get(CONFIG_VARIABLE, "") if config is None else str(config)
    try:
        file = read_file(Path(named)) if named else None
    except ValueError as exc:
        raise SettingsError(str(exc)) from exc
    sources = Sources(given, variables(os.environ, Settings.model_fields), file)
    try:
        return Settings(**sources.values(os.environ, _SIZES))
    except ValidationError as exc:
        raise SettingsError(sources.faults(exc.errors(), Settings.model_fields)) from exc


def warn_of_variables() -> None:
    """Log a warning where the environment has LAYERSTREAM_* variables that are no setting."""
    unknown = unknown_variables(Settings.model_fields)
    if unknown:
        _log.warning("%s", unknown)
