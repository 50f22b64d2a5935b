"""What the packs of a repository need at least, so that one that loads leaves the others their place."""

import os
from collections.abc import Callable
from pathlib import Path

from models.errors import ModelError
from models.packs.pack import find_pack
from pipeline.devices.base import DeviceError
from pipeline.planning.plan import PlanError
from server.errors import RefusedError

# What tells whether a file is still the one that was read: device, inode, size, time of change.
_Seen = tuple[int, int, int, int]


class Minima:
    """Asks ``least_bytes`` of a folder once, and again when the manifest there is another file."""

    def __init__(self, least_bytes: Callable[[Path], int]) -> None:
        self._least_bytes = least_bytes
        self._known: dict[Path, tuple[_Seen, int]] = {}

    def of(self, folder: Path) -> int:
        """Return how many bytes the latest version in ``folder`` needs; 0 where it cannot be served."""
        try:
            manifest = find_pack(folder) / "manifest.json"
            seen = _seen(manifest.stat())
            known = self._known.get(manifest)
            if known is None or known[0] != seen:
                known = self._known[manifest] = seen, self._least_bytes(folder)
        except (ModelError, PlanError, DeviceError, RefusedError, OSError):
            return 0
        return known[1]


def _seen(found: os.stat_result) -> _Seen:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
