"""What reads of this machine's disks take, measured once for all packs: a file in the user's cache.

$XDG_CACHE_HOME/layerstream/disks.json, by default ~/.cache/layerstream/disks.json. A curve belongs to a
disk, its file system, and how files are read; after MAX_AGE_DAYS it is measured again. The file is a cache
and never trusted: if it is lost or damaged, the next profile measures the disk.
"""

import logging
import os
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from models.errors import first_fault
from models.whole_files import write_atomically
from pipeline.profiles.machine import Machine
from pipeline.profiles.times import ReadTime

#: A disk fills and wears: an older curve is measured again.
MAX_AGE_DAYS = 30
_MAX_FILE_BYTES = 1 << 20
_MAX_CURVES = 64
# Fields of Machine that reads depend on.
_OF_READS = (
    *("cpu", "kernel", "device", "file_system", "reader", "reader_priority"),
    *("huge_pages", "pace"),
)

# Pydantic would keep strings for as long as the process lives.
_CONFIG = ConfigDict(frozen=True, extra="forbid", cache_strings="keys")

_log = logging.getLogger(__name__)


class DiskCurve(BaseModel):
    """``reads``, the first of them at ``date``; ``disk``: the fields of Machine that they depend on."""

    model_config = _CONFIG

    disk: dict[str, str | float | bool | None]
    date: AwareDatetime
    reads: tuple[ReadTime, ...]


class _Document(BaseModel):
    model_config = _CONFIG

    format_version: Literal[1] = 1
    curves: Annotated[tuple[DiskCurve, ...], Field(max_length=_MAX_CURVES)] = ()


def default_file() -> Path | None:
    """Return the file of the user who runs this process; None: no folder for caches is known."""
    try:
        folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(folder) / "layerstream" / "disks.json"


class DiskCurves:
    """The curves in ``path``; None: none is saved. ``renew``: what it has is measured again."""

    def __init__(self, path: Path | None, renew: bool = False) -> None:
        self._path = path
        self._renew = renew

    @classmethod
    def of_user(cls, renew: bool = False) -> Self:
        """Return those of the user who runs this process."""
        return cls(default_file(), renew)

    def reads(self, machine: Machine, now: datetime) -> tuple[ReadTime, ...]:
        """Return the reads of the disk of ``machine``; none if it was not measured, or too long ago."""
        curve = self._valid(_disk(machine), now)
        return () if curve is None else curve.reads

    def save(self, machine: Machine, reads: Iterable[ReadTime], now: datetime) -> None:
        """Replace the curve of the disk of ``machine``; ``reads``: those that it had, and further ones.

        If the file cannot be written, the next profile measures the disk.
        """
        if self._path is None:
            return
        disk = _disk(machine)
        before = self._valid(disk, now)
        curve = DiskCurve(
            disk=disk, date=now if before is None else before.date, reads=tuple(reads)
        )
        others = [item for item in self._load() if item.disk != disk]
        document = _Document(curves=(*others, curve)[-_MAX_CURVES:])
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, document.model_dump_json() + "\n")
        except OSError as exc:
            _log.debug("%s: not written: %s", self._path, exc.strerror or exc)

    def _valid(self, disk: dict[str, Any], now: datetime) -> DiskCurve | None:
        """Return the curve of ``disk`` that holds at ``now``."""
        if self._renew:
            return None
        oldest = now - timedelta(days=MAX_AGE_DAYS)
        curves = (item for item in self._load() if item.disk == disk)
        return next((item for item in curves if oldest < item.date <= now), None)

    def _load(self) -> Sequence[DiskCurve]:
        if self._path is None:
            return ()
        try:
            if self._path.stat().st_size > _MAX_FILE_BYTES:
                raise OSError(f"larger than {_MAX_FILE_BYTES} bytes")
            return _Document.model_validate_json(self._path.read_bytes()).curves
        except FileNotFoundError:
            return ()
        except OSError as exc:
            _log.warning("%s: ignored: %s", self._path, exc.strerror or exc)
        except ValidationError as exc:
            _log.warning("%s: ignored: %s", self._path, first_fault(exc))
        return ()


def _disk(machine: Machine) -> dict[str, Any]:
    return {name: getattr(machine, name) for name in _OF_READS}
