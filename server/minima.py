"""What the packs of a repository need at least, so that one that loads leaves the others their place."""

import os
from collections.abc import Callable
from pathlib import Path

from models.errors import ModelError
from models.pack import Pack, find_pack
from pipeline.architectures import Architecture
from pipeline.devices.base import DeviceError
from pipeline.planning.plan import PlanError
from pipeline.planning.thumb import smallest_plan

# What tells whether a file is still the one that was read: device, inode, size, time of change.
_Seen = tuple[int, int, int, int]


class Minima:
    """Opens a pack (by ``open_folder``) once, and again when its manifest is another file."""

    def __init__(self, open_folder: Callable[[Path], Pack], architecture: Architecture) -> None:
        self._open_folder = open_folder
        self._architecture = architecture
        self._known: dict[Path, tuple[_Seen, int]] = {}

    def of(self, folder: Path) -> int:
        """Return how many bytes the latest version in ``folder`` needs; 0 where it cannot be opened."""
        try:
            manifest = find_pack(folder) / "manifest.json"
            seen = _seen(manifest.stat())
            known = self._known.get(manifest)
            if known is None or known[0] != seen:
                smallest = smallest_plan(self._open_folder(folder).manifest, self._architecture)
                known = self._known[manifest] = seen, smallest.total_bytes
        except (ModelError, PlanError, DeviceError, OSError):
            return 0
        return known[1]


def _seen(found: os.stat_result) -> _Seen:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
