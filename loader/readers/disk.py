"""Where weights lie: on the disk of their file, or on one of another speed that reads without a core."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loader.readers.coreless import CorelessReader
from loader.readers.files import open_reader
from loader.readers.paced import Pace, PacedReader
from loader.readers.reader import Reader


@dataclass(frozen=True)
class Disk:
    """Opens files: for sweeps, and for timing reads of which nobody uses what they bring.

    ``bytes_per_second``: of all its files together; None: what the disk gives that they lie on.
    """

    open: Callable[[Path], Reader] = open_reader
    open_for_timing: Callable[[Path], Reader] = open_reader
    bytes_per_second: float | None = None


REAL_DISK = Disk()


def paced_disk(bytes_per_second: float) -> Disk:
    """Return a disk of that speed, as one that brings bytes by DMA: reads take no core.

    The first sweeps of an engine read their file, so that checksums and first answers are right; from then
    on reads take their time and bring nothing, and answers mean nothing.

    Raises:
        ValueError: that is no speed.
    """
    pace = Pace(bytes_per_second)
    return Disk(
        lambda path: PacedReader(CorelessReader(open_reader(path)), pace),
        lambda path: PacedReader(CorelessReader(open_reader(path), brings=0), pace),
        bytes_per_second,
    )
