"""``python -m tests.deploy.faulty_server serve ...``: a fault of the server begins and ends with SIGUSR1.

LAYERSTREAM_TEST_FAULT names it: a kind of loader/readers/fakes.py for every read, "hung" (reads do not
end), or "leak" (memory that is not accounted for).
"""

import os
import signal
import threading
from pathlib import Path
from types import FrameType

from cli.process import main
from loader.readers.fakes import FaultyReader, ReadFault
from loader.readers.files import open_reader
from loader.readers.interface import Reader
from server.repository import environment

_LEAK_BYTES = 100 << 20
_FAULTS = {
    "io error": ReadFault("io error", times=None),
    "gone": ReadFault("gone"),
    "slow": ReadFault("slow", times=None, factor=100.0),
}

_begun = threading.Event()
_ended = threading.Event()
_leaked: list[bytearray] = []


class _Faulty(Reader):
    """Reads as ``reader`` does, while the fault lasts as ``faulty`` does, or not at all."""

    def __init__(self, reader: Reader, faulty: Reader, hangs: bool) -> None:
        self.kind, self.name, self.alignment = reader.kind, reader.name, reader.alignment
        self._reader, self._faulty, self._hangs = reader, faulty, hangs

    @property
    def _current(self) -> Reader:
        return self._faulty if _begun.is_set() else self._reader

    def read_into(self, offset: int, target: memoryview) -> None:
        if self._hangs and _begun.is_set():
            _ended.wait()
        self._current.read_into(offset, target)

    def check(self) -> None:
        self._current.check()

    def close(self) -> None:
        self._reader.close()


def _toggle(number: int, frame: FrameType | None) -> None:
    if _begun.is_set():
        _begun.clear()
        _ended.set()
        return
    _ended.clear()
    _begun.set()
    if os.environ["LAYERSTREAM_TEST_FAULT"] == "leak":
        _leaked.append(bytearray(os.urandom(1)) * _LEAK_BYTES)


def _install(kind: str) -> None:
    faults = [_FAULTS[kind]] if kind in _FAULTS else []

    def open_faulty(path: Path) -> Reader:
        reader = open_reader(path)
        return _Faulty(reader, FaultyReader(reader, faults), kind == "hung")

    vars(environment)["open_reader"] = open_faulty


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _toggle)
    _install(os.environ["LAYERSTREAM_TEST_FAULT"])
    main()
