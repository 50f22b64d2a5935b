"""Packs that come, change and go while the service runs; they are loaded when they are whole.

With model_control = poll the repository is looked at every few seconds. A look is a stat for each file: a
few microseconds each, and the same on every file system. The kernel's events (inotify, as watchfiles uses)
do not come where a repository is shared over a network, and say when a copy began, not when it is whole.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from models.packs.folders import versions
from server.causes import because
from server.errors import NotFoundError, system_hint
from server.faults import FAILURES
from server.repository.entry import Entry
from server.repository.on_disk import PACK_FILES, Seen, look, model_names
from server.repository.repository import Repository
from server.repository.retrying import Retrier

_log = logging.getLogger(__name__)

#: What is seen of each model that is there, by name.
Sight = Mapping[str, Seen]


@dataclass(frozen=True)
class Changes:
    """Models that are new or have changed, and models that are gone; by name."""

    come: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


class Changing:
    """Compares looks. ``settled``: what was seen of the models as they are served.

    A changed model counts once two looks in a row have seen the same of it: while it is being copied, it
    changes from look to look.
    """

    def __init__(self, settled: Sight) -> None:
        self._settled = dict(settled)
        self._before = dict(settled)
        self._missing: Set[str] = set()

    def has_back(self, now: Sight) -> bool:
        """Return whether a model is there ``now`` that was missing at the last look."""
        return not self._missing.isdisjoint(now)

    def look(self, now: Sight, known: Collection[str] = ()) -> Changes:
        """Return models that differ from those settled and are as at the last look; they are settled now.

        ``known``: other models that were there before this look.
        """
        come = tuple(
            name
            for name, seen in sorted(now.items())
            if seen != self._settled.get(name) and seen == self._before.get(name)
        )
        missing = (self._settled.keys() | known) - now.keys()
        gone = tuple(sorted(missing & self._missing))
        self._before, self._missing = dict(now), missing.difference(gone)
        self._settled.update((name, now[name]) for name in come)
        for name in gone:
            self._settled.pop(name, None)
        return Changes(come, gone)


def look_at_all(root: Path, chosen: Collection[str]) -> Sight | None:
    """Return what is seen of the models in ``root``; ``chosen``: only these; empty: all. Blocks.

    None: the repository itself is not there, as while it is mounted again; its models count as unchanged.
    """
    try:
        names = model_names(root)
    except (NotFoundError, OSError):
        return None
    return {name: look(_files(root / name)) for name in names if not chosen or name in chosen}


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a model: those beside its versions, and those of its packs."""
    try:
        yield from (path for path in sorted(folder.iterdir()) if path.is_file())
        folders = versions(folder)
    except OSError:  # the folder was removed meanwhile
        return
    for version in folders:
        yield from (version / name for name in PACK_FILES)


class Poller:
    """Lets ``repository`` follow its folder; ``chosen``: only these models; empty: all.

    ``retrier``: tries models again that were not taken. Make it before the models are loaded, so that
    changes meanwhile are seen. It blocks for the first look.
    """

    def __init__(
        self, repository: Repository, chosen: Collection[str], retrier: Retrier | None = None
    ) -> None:
        self._repository = repository
        self._chosen = chosen
        self._retrier = retrier or Retrier(repository)
        self._changing = Changing(look_at_all(repository.root, chosen) or {})
        self._was_away = False

    async def run(self, interval_seconds: float) -> None:
        """Look every ``interval_seconds``; runs until cancelled."""
        while True:
            await asyncio.sleep(interval_seconds)
            try:
                await self.step()
            except Exception:  # noqa: BLE001  after any error the service goes on, and looks again
                _log.exception("the repository cannot be followed")

    async def step(self) -> Changes:
        """Look once, follow the changes, and return them."""
        entries = self._followed()
        now = await asyncio.to_thread(look_at_all, self._repository.root, self._chosen)
        is_back, self._was_away = self._was_away, now is None
        if now is None:
            return Changes()
        is_back = is_back or self._changing.has_back(now)
        changes = self._changing.look(now, {entry.model for entry in entries if not entry.is_lost})
        for name in changes.gone:
            await self._repository.remove(name)
        for name in changes.come:
            await self._bring(name)
        if changes.come or changes.gone or is_back:
            self._retrier.make_due()
            await self._retrier.step()
        return changes

    def _followed(self) -> list[Entry]:
        """Return the entries of the models that are followed, also of those that were never on disk."""
        entries = self._repository.entries()
        return [entry for entry in entries if not self._chosen or entry.model in self._chosen]

    async def _bring(self, name: str) -> None:
        """Load ``name`` as it is now, unless a client has unloaded it; the log has errors.

        After an error that may pass, or want of room, it is tried again.
        """
        if self._repository.models.is_unloaded(name):
            return
        try:
            with because("its files are new or changed"):
                await self._repository.load(name, is_whole=False, unless={"unloaded"})
        except FAILURES as exc:
            _log.warning("model %s: not taken: %s", name, f"{exc}{system_hint(exc)}")


async def follow(repository: Repository) -> None:
    """Remove models that are gone, and load new and changed ones, which the operator knows to be whole.

    A model that a client has unloaded stays so, and an evicted one until a request comes. The log has
    errors.

    Raises:
        NotFoundError: there is no repository any more; nothing has changed.
    """
    there = repository.catalog.on_disk()
    for name in sorted({entry.model for entry in repository.entries()}.difference(there)):
        await repository.remove(name)
    models = repository.models
    for name in repository.catalog.names():
        if models.is_unloaded(name) or models.is_evicted(name):
            continue
        try:
            with because("SIGHUP"):
                await repository.load(name, unless={"unloaded", "evicted"})
        except FAILURES as exc:
            _log.error("not served: model %s: %s", name, f"{exc}{system_hint(exc)}")
