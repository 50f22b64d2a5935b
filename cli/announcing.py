"""What ``layerstream up`` prints as models come: the command that asks each, or why it does not answer."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from cli.questions import question
from models.errors import printable
from models.packs.pack import read_pack
from server.faults import FAILURES
from server.repository.entry import Entry
from server.service import Service
from server.settings.settings import Settings


class Announcer:
    """Prints a line once for each model, as soon as it answers or will not.

    ``files``: what each was compiled from. ``suffices`` says which memory is enough, where a model lacks
    some.
    """

    def __init__(
        self, settings: Settings, files: Mapping[str, Path], suffices: Callable[[], str]
    ) -> None:
        self._settings, self._waiting, self._suffices = settings, dict(files), suffices
        self._turn = threading.Lock()  # one look may go on while the last one begins

    def __call__(self, service: Service, address: str, all_were_tried: bool) -> None:
        """Look at the models of ``service``; ``all_were_tried``: no more of them will answer."""
        with self._turn:
            entries = list(service.repository.entries())
            for entry in entries:
                if entry.name in self._waiting and (entry.answers or all_were_tried):
                    file = self._waiting.pop(entry.name)
                    print(printable(self._line(entry, address, file)), flush=True)
            absent = all_were_tried and not all(entry.answers for entry in entries)
            if absent and (enough := self._suffices()):
                print(f"# {enough}", flush=True)

    def _line(self, entry: Entry, address: str, file: Path) -> str:
        try:
            if not entry.answers:
                return f"# {entry.name} is not served: {entry.reason}"
            # Of one that is evicted only its file is there.
            pack = entry.pack or read_pack(self._settings.repository / entry.name)
            return question(pack.manifest, entry.name, address, self._settings, file)
        except FAILURES as exc:
            return f"# {entry.name}: {exc}"
