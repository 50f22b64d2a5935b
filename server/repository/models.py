"""The models as the service knows them: the state of each slot."""

from server.errors import NotFoundError, shown
from server.repository.entry import Entry
from server.settings.per_model import of_model
from server.settings.settings import Settings


class Models(dict[str, Entry]):
    """Entries by the names of their slots."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings

    def known(self, slot: str, model: str) -> Entry:
        """Return the entry of ``slot``, which may be new."""
        deadline = of_model(self._settings.deadline, model, None)
        return self.setdefault(slot, Entry(slot, model, deadline=deadline))

    def of(self, model: str) -> list[Entry]:
        """Return the entries of ``model``, one or one for each version."""
        return [entry for entry in self.values() if entry.model == model]

    def versions(self, model: str) -> list[str]:
        """Return the versions of ``model`` that answer, lowest first."""
        answering = [entry.slot for entry in self.of(model) if entry.answers]
        return sorted((slot.folder.name for slot in answering if slot is not None), key=_number)

    def find(self, name: str, version: str | None = None) -> Entry:
        """Return the entry that answers requests to ``version``, or to the latest that answers.

        Raises:
            NotFoundError: unknown name or version.
        """
        only = self.get(name)
        if only is not None and (version is None or only.version in {None, version}):
            return only
        candidates = self.of(name) if only is None else [only]
        if not candidates:
            raise NotFoundError(f"model {shown(name)}: not found")
        if version is not None:
            candidates = [each for each in candidates if each.version in {None, version}]
            if not candidates:
                raise NotFoundError(f"model {shown(name)}: version {shown(version)} not found")
        return max(candidates, key=lambda each: (each.answers, _number(each.version)))

    def is_unloaded(self, model: str) -> bool:
        """Return whether a client has unloaded ``model``."""
        return any(entry.absence == "unloaded" for entry in self.of(model))

    def is_evicted(self, model: str) -> bool:
        """Return whether ``model`` is evicted: the next request will load it as it is on disk then."""
        entries = self.of(model)
        return bool(entries) and all(entry.evicted for entry in entries)

    def withdrawn(self) -> set[str]:
        """Return the slots that need no memory later: unloaded by a client, or lost for good."""
        return {
            entry.name for entry in self.values() if entry.absence == "unloaded" or entry.is_lost
        }


def _number(version: str | None) -> int:
    return int(version) if version is not None and version.isdecimal() else -1
