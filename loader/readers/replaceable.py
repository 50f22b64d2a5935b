"""A reader of a file whose path another file may take meanwhile: the one that was opened is read on."""

import logging

from loader.errors import FileReplacedError
from loader.readers.reader import Reader

_log = logging.getLogger(__name__)


class ReplaceableReader(Reader):
    """Reads as ``reader`` does, and takes it for sound while the file that it has open is.

    Whoever replaced the file means it to be opened anew: until then what was loaded of it stays whole.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._was_replaced = False
        self.kind, self.name, self.alignment = reader.kind, reader.name, reader.alignment

    def read_into(self, offset: int, target: memoryview) -> None:
        self._reader.read_into(offset, target)

    def check(self) -> None:
        """Do as the reader does, but for FileReplacedError, which is logged once."""
        try:
            self._reader.check()
        except FileReplacedError as exc:
            if not self._was_replaced:
                _log.info("%s: the one that was opened is read until it is loaded again", exc)
            self._was_replaced = True

    def close(self) -> None:
        self._reader.close()
