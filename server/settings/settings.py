"""Settings of the service: flags first, then LAYERSTREAM_* variables, then a TOML file, then defaults.

A setting has one name, from which its flag, its variable and its key in the file are made. Its one
description is that in its group; help texts and tables are made of that (server/settings/table.py).
"""

import ipaddress
import logging
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, ValidationError, ValidationInfo, field_validator

from models.sizes import parse_size
from server.settings.groups import (
    AccessSettings,
    LimitSettings,
    LogSettings,
    MemorySettings,
    ModelSettings,
    NetworkSettings,
    SchedulingSettings,
    UploadSettings,
)
from server.settings.sources import PREFIX, Sources, read_file, unknown_variables, variables

_log = logging.getLogger(__name__)

CONFIG_VARIABLE = f"{PREFIX}CONFIG"
_SIZES = ("memory", "budget", "request_memory", "max_body", "max_upload", "compile_memory")


class SettingsError(Exception):
    """A setting is missing or not what it should be; the message names it, and where it was given."""


# pydantic takes the fields of the last base first. That order is the order of the table, and a validator
# sees only the fields before its own.
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


def load_settings(
    flags: Mapping[str, Any],
    config: Path | None = None,
    memory: Callable[[], int] | None = None,
) -> Settings:
    """Return the settings from ``flags`` (None values count as absent), environment and file.

    The file is ``config``, or what LAYERSTREAM_CONFIG names. ``memory`` returns the bytes that are taken
    where neither memory nor a budget is given; 0, or None: one of them must be.

    Raises:
        SettingsError: values are missing or wrong, or the file cannot be read.
    """
    present = {name: value for name, value in flags.items() if value is not None}
    named = os.environ.get(CONFIG_VARIABLE, "") if config is None else str(config)
    try:
        file = read_file(Path(named)) if named else None
    except ValueError as exc:
        raise SettingsError(str(exc)) from exc
    sources = Sources(present, variables(os.environ, Settings.model_fields), file)
    values = sources.values(os.environ, _SIZES)
    if memory is not None and not values.keys() & {"memory", "budget"} and (free := memory()):
        values["memory"] = free
    try:
        return Settings(**values)
    except ValidationError as exc:
        raise SettingsError(sources.faults(exc.errors(), Settings.model_fields)) from exc


def warn_of_variables() -> None:
    """Log a warning where the environment has LAYERSTREAM_* variables that are no setting."""
    unknown = unknown_variables(Settings.model_fields)
    if unknown:
        _log.warning("%s", unknown)


def server_names(settings: Settings) -> frozenset[str]:
    """Return the names, in lower case, under which the server answers where it needs no keys."""
    machine = socket.gethostname().lower()
    usual = {"localhost", settings.host.lower(), machine, f"{machine.partition('.')[0]}.local"}
    return frozenset(usual.union(name.lower() for name in settings.allowed_hosts))


# A warning at the start where other machines can reach the server.


def warn_of_exposure(settings: Settings, host: str | None) -> None:
    """Log a warning when the server is open to more clients than an operator may expect.

    ``host``: the address that the server listens on; None: a Unix socket.
    """
    warning = exposure(settings, host) if host is not None else ""
    if warning:
        _log.warning("%s", warning)


def exposure(settings: Settings, host: str) -> str:
    """Return what other machines can do when the server listens on ``host``; empty: nothing to warn of."""
    reached = not is_loopback(host)
    if settings.keys is not None:
        if not reached or settings.tls_certificate is not None:
            return ""
        return (
            f"listening on {host} without TLS: who is on the way reads keys and requests "
            "(settings tls_certificate and tls_key, or a proxy)"
        )
    if not reached:
        passed_on = "--allow-admin: whatever a proxy on this machine passes on may load and unload"
        return passed_on if settings.allow_admin else ""
    administration = (
        "and, by --allow-admin, load and unload models"
        if settings.allow_admin
        else "(loading and unloading stays with this machine; --allow-admin gives it to all)"
    )
    return (
        f"listening on {host}: EVERYONE who reaches this address can use the models, read metrics and "
        f"states {administration}; there is no access control without keys (setting keys), a proxy or "
        "firewall must have it"
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches ``host``, an address or a name; may ask the resolver."""
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(
        ipaddress.ip_address(str(item[4][0]).split("%")[0]).is_loopback for item in addresses
    )
