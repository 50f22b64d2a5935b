"""What is known of every slot, and which of them a request means."""

from models.packs.pack import Pack
from server.errors import NotFoundError, shown
from server.repository.entry import Entry, Unloaded


class Entries(dict[str, Entry]):
    """Entries by the names of their slots."""

    def known(self, name: str, model: str) -> Entry:
        """Return the entry of the slot ``name``, which may be new."""
        return self.setdefault(name, Entry(name, model))

    def note(self, model: str, exc: Exception) -> None:
        """Note why nothing of ``model`` can be loaded as it is on disk now, if it is there at all.

        What is loaded serves on; what was evicted tells whom it is loaded for.
        """
        if isinstance(exc, NotFoundError):
            return
        for entry in self.of(model) or [self.known(model, model)]:
            if isinstance(entry.condition, Unloaded) and not entry.evicted:
                entry.become(Unloaded.after(exc))

    def of(self, model: str) -> list[Entry]:
        """Return what is known of the versions of ``model``."""
        return [entry for entry in self.values() if entry.model == model]

    def versions(self, model: str) -> list[str]:
        """Return the versions of ``model`` that answer, lowest first."""
        slots = [entry.slot for entry in self.of(model) if entry.answers]
        return sorted((slot.folder.name for slot in slots if slot is not None), key=_number)

    def find(self, model: str, version: str | None = None) -> Entry:
        """Return the entry that answers requests to ``version``, or to the latest that answers.

        Raises:
            NotFoundError: unknown name or version.
        """
        only = self.get(model)
        if only is not None and (version is None or only.version in {None, version}):
            return only
        known = self.of(model) if only is None else [only]
        if not known:
            raise NotFoundError(f"model {shown(model)}: not found")
        if version is not None:
            known = [each for each in known if each.version in {None, version}]
            if not known:
                raise NotFoundError(f"model {shown(model)}: version {shown(version)} not found")
        return max(known, key=lambda each: (each.answers, _number(each.version)))

    def serving(self, model: str, version: str | None = None) -> tuple[Entry, Pack]:
        """Return what answers now, and its pack.

        Raises:
            NotFoundError: unknown name or version, or unloaded by request. RefusedError, NotServingError:
                it is not loaded.
        """
        entry = self.find(model, version)
        return entry, entry.serving().prepared.pack


def _number(version: str | None) -> int:
    return int(version) if version is not None and version.isdecimal() else -1
