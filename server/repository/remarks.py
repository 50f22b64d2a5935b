"""What the log says of settings and configurations that mean nothing here."""

import logging
from collections.abc import Collection

from server.errors import few, shown
from server.repository.model_config import FILE, ModelConfig
from server.repository.on_disk import ignored_fields
from server.settings.per_model import ALL
from server.settings.settings import Settings

_log = logging.getLogger(__name__)

# Settings in which models are named.
_BY_MODEL = ("workers", "deadline", "lanes", "preferred_lanes", "lane_delay", "evictable")


def warn_of_names(settings: Settings, models: Collection[str]) -> None:
    """Say which names of settings by model are none of the ``models``."""
    for setting in _BY_MODEL:
        unknown = sorted(set(getattr(settings, setting)) - {ALL, *models})
        if unknown:
            listed = few(list(map(shown, unknown)))
            _log.warning("%s: not in the repository: %s", setting, listed)


class IgnoredFields:
    """Says once of each model which fields of its configuration mean nothing here."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def say(self, name: str, config: ModelConfig) -> None:
        """Say it, where it is not what was said last."""
        ignored = ignored_fields(config)
        if self._said.get(name, "") != ignored:
            known = f"ignored: {ignored}" if ignored else "nothing of it is ignored any more"
            _log.info("model %s: %s: %s", name, FILE, known)
        self._said[name] = ignored
