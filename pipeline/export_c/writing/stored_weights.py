"""Where weights lie: as constants in the source, or in a file that a callback reads.

The file begins with a header of 32 bytes, little-endian like all of it: magic, version, bytes of the whole
file (64 bits), CRC-32 of what follows the header, three words of zero. Arrays follow, aligned; equal ones
are there once.
"""

import hashlib
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.compiler.cutting.chunks import default_chunk_bytes
from models.packs.records.pieces import TENSOR_ALIGNMENT
from pipeline.export_c.lowering.calls import KernelStep, Weight
from pipeline.export_c.network.network import ExportError

MAGIC = 0x4357534C  # "LSWC"
VERSION = 1
HEADER_BYTES = 32
_PIECE = 16  # weights of one step are aligned to this in the buffer


@dataclass(frozen=True)
class StoredWeights:
    """All weights: ``arrays`` by number, each at its offset in a file of ``n_bytes``."""

    arrays: tuple[NDArray[Any], ...]
    offsets: tuple[int, ...]
    n_bytes: int
    _numbers: dict[bytes, int]

    @property
    def weight_bytes(self) -> int:
        """Bytes of the arrays themselves."""
        return sum(array.nbytes for array in self.arrays)

    def number(self, weight: Weight) -> int:
        """Return the number of the array that ``weight`` is."""
        return self._numbers[_digest(weight.array)]


def store(steps: Iterable[KernelStep]) -> StoredWeights:
    """Give all weights of ``steps`` numbers and offsets."""
    arrays: list[NDArray[Any]] = []
    offsets: list[int] = []
    numbers: dict[bytes, int] = {}
    end = HEADER_BYTES
    for step in steps:
        for weight in step.weights:
            digest = _digest(weight.array)
            if digest in numbers:
                continue
            numbers[digest] = len(arrays)
            start = -(-end // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
            arrays.append(weight.array)
            offsets.append(start)
            end = start + weight.array.nbytes
    return StoredWeights(tuple(arrays), tuple(offsets), end, numbers)


def _digest(array: NDArray[Any]) -> bytes:
    known = hashlib.sha256(repr((array.dtype.str, array.shape)).encode())
    known.update(np.ascontiguousarray(array).tobytes())
    return known.digest()


def weights_file(stored: StoredWeights) -> bytes:
    """Return the file that a callback reads."""
    content = bytearray(stored.n_bytes - HEADER_BYTES)
    for array, offset in zip(stored.arrays, stored.offsets, strict=True):
        data = array.astype(array.dtype.newbyteorder("<")).tobytes()
        content[offset - HEADER_BYTES : offset - HEADER_BYTES + len(data)] = data
    words = (MAGIC, VERSION, stored.n_bytes, zlib.crc32(content), 0, 0, 0)
    return struct.pack("<IIQIIII", *words) + bytes(content)


@dataclass(frozen=True)
class WeightRead:
    """A read into the buffer: array ``number`` to byte ``at``, all of it, or by rows of ``row_bytes``."""

    number: int
    at: int
    n_bytes: int
    row_bytes: int = 0


@dataclass(frozen=True)
class Loads:
    """What a step reads: first the arrays that all filters need, then ``rows`` filters at a time."""

    whole: tuple[WeightRead, ...]
    by_rows: WeightRead | None
    rows: int

    @property
    def n_bytes(self) -> int:
        """What of the buffer it takes."""
        ends = [load.at + load.n_bytes for load in self.whole]
        if self.by_rows is not None:
            ends.append(self.by_rows.at + self.rows * self.by_rows.row_bytes)
        return max(ends, default=0)


def plan_loads(
    steps: Sequence[KernelStep], stored: StoredWeights, arena_bytes: int, limit: int | None
) -> list[Loads]:
    """Return what each step reads into a buffer of ``limit`` bytes.

    ``limit``: None: as many as the compiler's chunks have for so many weights, but of a network with a
    small arena a quarter of it; more if one filter does.

    Raises:
        ExportError: a step needs more, even for one filter; the message says how many do for all.
    """
    if limit is None:
        least = max((_loads(step, stored, 0).n_bytes for step in steps), default=0)
        limit = max(least, min(default_chunk_bytes(stored.weight_bytes), arena_bytes // 4))
    loads = [_loads(step, stored, limit) for step in steps]
    most = max(range(len(steps)), key=lambda n: loads[n].n_bytes, default=None)
    if most is not None and loads[most].n_bytes > limit:
        raise ExportError(
            f"the buffer has {limit} bytes, the smallest that works {loads[most].n_bytes}: of so many "
            f"weights node {steps[most].label!r} needs one filter and what goes with it at once",
            steps[most].label,
        )
    return loads


def _loads(step: KernelStep, stored: StoredWeights, limit: int) -> Loads:
    end, whole = 0, []
    for weight in step.weights:
        if not weight.rows:
            whole.append(WeightRead(stored.number(weight), end, weight.array.nbytes))
            end = -(-(end + weight.array.nbytes) // _PIECE) * _PIECE
    rows = next((weight for weight in step.weights if weight.rows), None)
    if rows is None:
        return Loads(tuple(whole), None, 0)
    row_bytes = rows.array.nbytes // len(rows.array)
    most = max((limit - end) // max(row_bytes, 1), 1)
    # As equal as they can be, so that none is a small rest.
    calls = -(-len(rows.array) // most)
    at_once = -(-len(rows.array) // calls)
    by_rows = WeightRead(stored.number(rows), end, rows.array.nbytes, row_bytes)
    return Loads(tuple(whole), by_rows, at_once)
