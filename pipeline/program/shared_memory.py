"""Which values lie in the memory of others, and what a region would overwrite there.

A residual sum often lies over what it adds, which nothing needs any more when the pieces run one after
the other. In a region they take turns: the sum's first rows are written while some of what it adds is yet
to be read.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from models.packs.manifest import Manifest


def roots(
    manifest: Manifest,
    over: Mapping[int, int] = MappingProxyType({}),
    apart: Collection[int] = (),
) -> list[tuple[int, int]]:
    """Return, for each value, the value whose memory it lies in and its byte offset there.

    ``over``: values that a plan puts over others beside those of the manifest. What would lie in one of
    ``apart`` has memory of its own.
    """
    found = []
    for index in range(len(manifest.values)):
        root, offset = index, 0
        while (parent := manifest.values[root].parent) is not None and parent not in apart:
            offset += manifest.values[root].offset
            root = parent
        while root in over:
            root = over[root]
        found.append((root, offset))
    return found


@dataclass(frozen=True, slots=True)
class Access:
    """Operator ``position`` of a region reads or writes a row value where it lies whole.

    ``rows``: for each phase, the first row that it reads there, None: it does not run; or the row up to
    which it has written.
    """

    position: int
    row_value: int
    rows: Sequence[int | None]


class SharedMemory:
    """Tells which row values of ``manifest`` lie in the same bytes."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._roots = roots(manifest)

    def overwritten(self, read: Sequence[Access], written: Sequence[Access]) -> Iterator[Access]:
        """Yield what is ``read`` after other rows were ``written`` there."""
        for reading in read:
            if any(self._is_overwritten(reading, writing) for writing in written):
                yield reading

    def _is_overwritten(self, reading: Access, writing: Access) -> bool:
        if reading.row_value == writing.row_value or not self._overlap(
            reading.row_value, writing.row_value
        ):
            return False
        if not self._alike(reading.row_value, writing.row_value):
            return True
        ends: list[int | None] = [*writing.rows]
        if writing.position >= reading.position:
            ends = [0, *ends[:-1]]  # it writes after this one has read, in each phase
        return any(
            first is not None and first < (end or 0)
            for first, end in zip(reading.rows, ends, strict=True)
        )

    def _overlap(self, one: int, other: int) -> bool:
        (root, start, end), (other_root, other_start, other_end) = map(self._place, (one, other))
        return root == other_root and max(start, other_start) < min(end, other_end)

    def _alike(self, one: int, other: int) -> bool:
        """Return whether row i of any plane of one overlaps with no other row of the other's planes."""
        values = [self._manifest.row_values[number] for number in (one, other)]
        if len({(value.height, value.row_bytes) for value in values}) > 1:
            return False
        apart = self._place(one)[1] - self._place(other)[1]
        return apart % (values[0].height * values[0].row_bytes) == 0

    def _place(self, row_value: int) -> tuple[int, int, int]:
        """Return the value in whose memory a row value lies, and its bytes [start, end) there."""
        held = self._manifest.row_values[row_value]
        root, offset = self._roots[held.value]
        return root, offset, offset + held.n_bytes
