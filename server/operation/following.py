"""The models served follow those on disk: new ones are loaded, changed ones again, gone ones unloaded."""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from loader.errors import LoaderError
from models.packs.pack import versions
from server.errors import ServiceError
from server.repository.entry import Entry
from server.repository.repository import Repository

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Known:
    """One model as the service has it: its ``version`` if it is loaded; ``stale``: its files are others."""

    name: str
    version: str | None = None
    stale: bool = False
    unloaded: bool = False


@dataclass(frozen=True)
class Changes:
    """Names of models: ``unload`` comes first, then ``load``; who is in both is loaded again."""

    unload: tuple[str, ...] = ()
    load: tuple[str, ...] = ()


def changes(
    on_disk: Mapping[str, str], known: Iterable[Known], only: Collection[str], gone: Collection[str]
) -> Changes:
    """Return what makes the service that of the disk.

    ``on_disk``: the latest version by name. ``only`` these are served; none: all. ``gone``: unloaded
    because they were not there, which is nobody's wish.
    """
    served = {name for name in on_disk if not only or name in only}
    loaded = {each.name: each for each in known if each.version is not None}
    stay_away = {each.name for each in known if each.unloaded} - set(gone)
    lost = [name for name in loaded if name not in on_disk]
    other = [
        name
        for name, each in loaded.items()
        if name in on_disk and (each.stale or each.version != on_disk[name])
    ]
    new = served - set(loaded) - stay_away
    return Changes(tuple(sorted([*lost, *other])), tuple(sorted([*other, *new])))


class Following:
    """Follows the folder of ``repository``; ``only`` these models, if there are any."""

    def __init__(self, repository: Repository, root: Path, only: Collection[str]) -> None:
        self._repository = repository
        self._root = root
        self._only = only
        self._gone: set[str] = set()

    async def follow(self) -> None:
        """Look, and change what is served.

        Raises:
            NotFoundError: there is no repository any more; nothing has changed.
        """
        entries = self._repository.entries()
        on_disk, known = await asyncio.to_thread(self._look, entries)
        found = changes(on_disk, known, self._only, self._gone)
        for name in found.unload:
            await self._repository.unload(name)
        self._gone = (self._gone | set(found.unload)) - set(found.load)
        for name in found.load:
            try:
                await self._repository.load(name)
            except Exception as exc:  # noqa: BLE001  the others go on
                _log.error("not served: model %s: %s", name, exc)

    def _look(self, entries: Collection[Entry]) -> tuple[dict[str, str], list[Known]]:
        names = self._repository.names()
        found = {name: versions(self._root / name) for name in names}
        on_disk = {name: folders[-1].name for name, folders in found.items() if folders}
        return on_disk, list(map(_known, entries))


def _known(entry: Entry) -> Known:
    worker = entry.worker
    if worker is None:
        return Known(entry.name, unloaded=entry.unloaded)
    stale = bool(worker.fault)
    try:
        worker.served.reader.check()
    except (LoaderError, ServiceError):
        stale = True
    return Known(entry.name, entry.version, stale)
