"""The service inside an application of your own (docs/how-to/embed.md)."""

from server.access import add_key
from server.app import create_app
from server.operation.starting import StartupError
from server.service import Service
from server.settings.settings import Settings, SettingsError, load_settings

__all__ = [
    "Service",
    "Settings",
    "SettingsError",
    "StartupError",
    "add_key",
    "create_app",
    "load_settings",
]
