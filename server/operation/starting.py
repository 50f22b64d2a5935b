"""The start: models are loaded, and it is checked that one of them serves or may serve later."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from server.errors import ServiceError, few
from server.repository.entry import Entry
from server.repository.repository import Repository
from server.settings.settings import Settings

_log = logging.getLogger(__name__)


class StartupError(ServiceError):
    """Nothing can be served; ``reasons`` say why. ``may_pass``: another start may succeed."""

    def __init__(self, *reasons: str, may_pass: bool = False) -> None:
        super().__init__(few(reasons, "; "))
        self.reasons: tuple[str, ...] = reasons
        self.may_pass = may_pass


async def load_all(
    settings: Settings, repository: Repository, reserve: Callable[[], Awaitable[None]]
) -> None:
    """Load the models that the settings name; ``reserve``: as of Repository.load_all.

    Raises:
        StartupError: a setting names a model that cannot come, or the repository cannot be read.
        NotFoundError: it does not exist.
    """
    try:
        await _check_named(settings, repository)
        await repository.load_all(reserve)
    except OSError as exc:
        why = f"repository {settings.repository}: {exc.strerror or exc}"
        raise StartupError(why, may_pass=not isinstance(exc, PermissionError)) from exc


async def _check_named(settings: Settings, repository: Repository) -> None:
    """Check that models which settings name are served, or may be later; raises as ``load_all``."""
    unknown = await asyncio.to_thread(repository.catalog.unknown)
    if unknown and settings.model_control == "none":
        raise StartupError(f"{unknown}; with model_control = none no other model comes")
    if unknown:
        _log.warning("%s", unknown)


def check_start(settings: Settings, entries: Sequence[Entry], *, follows: bool) -> None:
    """Check that a model serves or may serve later; log those that do not.

    ``follows``: packs that come later are loaded.

    Raises:
        StartupError: the repository is empty and nothing is to come, no model could be loaded, or one
            could not and ``exit_on_error`` is set.
    """
    strict, control = settings.exit_on_error, settings.model_control
    if not entries and (strict or control == "none"):
        raise StartupError(
            f"repository {settings.repository}: no packs in it; compile one into it (layerstream "
            "compile), or start with --model-control explicit, which takes uploads, or poll, which "
            f"waits for packs{', and without --exit-on-error' if strict else ''}"
        )
    failed = [entry for entry in entries if not entry.answers]
    if failed and (strict or (len(failed) == len(entries) and not follows)):
        reasons = [entry.message for entry in failed] if failed[1:] else [failed[0].reason]
        raise StartupError(*reasons, may_pass=any(entry.may_pass for entry in failed))
    for entry in failed:
        _log.error("not served: %s", entry.message)
