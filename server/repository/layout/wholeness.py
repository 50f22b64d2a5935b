"""Whether all of a pack is there: every byte of its weights is what the manifest says.

A copy may have its full size before its last byte, and nobody says when it is done. So what is taken
without being asked for is read once, as the first sweep would.
"""

import os
from pathlib import Path

import xxhash

from models.errors import PackError
from models.packs.pack import read_pack
from models.packs.records.spans import Span

_READ_BYTES = 1 << 20


def check_whole(folder: Path) -> None:
    """Check the pack in ``folder``; blocks for as long as the disk takes.

    Raises:
        PackError: something is not as the manifest says. OSError: no access.
    """
    pack = read_pack(folder)
    with pack.weights_path.open("rb", buffering=0) as file:
        for span in {span.file_offset: span for span in pack.manifest.spans}.values():
            if _checksum(file.fileno(), span) != span.checksum:
                end = span.file_offset + span.file_length
                raise PackError(
                    f"{pack.weights_path}: bytes [{span.file_offset}, {end}) are not those of the manifest"
                )
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _checksum(descriptor: int, span: Span) -> str:
    made, position = xxhash.xxh3_64(), span.file_offset
    end = position + span.file_length
    while position < end and (
        part := os.pread(descriptor, min(_READ_BYTES, end - position), position)
    ):
        made.update(part)
        position += len(part)
    return made.hexdigest()
