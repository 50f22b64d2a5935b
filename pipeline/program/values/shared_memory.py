"""Which values lie in the memory of others.

A residual sum often lies over what it adds, which nothing needs any more when the pieces run one after
the other. In a region they take turns: the sum's first rows are written while some of what it adds is yet
to be read. So these are loaded first (pipeline/program/loading.py).
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

from models.packs.records.pieces import Value
from pipeline.program.program import Program


def roots(
    program: Program,
    over: Mapping[int, int] = MappingProxyType({}),
    apart: Collection[int] = (),
    alone: Collection[int] = (),
) -> list[tuple[int, int]]:
    """Return, for each value, the value whose memory it lies in and its byte offset there.

    ``over``: values that a plan puts over others beside those of the program. What would lie in one of
    ``apart`` has memory of its own, and so have those ``alone``.
    """
    found = _in_parents(program.values, apart, alone)
    if not over:
        return found
    return [(_last(over, root), offset) for root, offset in found]


def _in_parents(
    values: Sequence[Value], apart: Collection[int], alone: Collection[int]
) -> list[tuple[int, int]]:
    """Return ``roots`` as parents say it; each value is looked at once, however deep it lies."""
    known: dict[int, tuple[int, int]] = {}
    for index in range(len(values)):
        path, at = [], index
        while (
            at not in known
            and (parent := values[at].parent) is not None
            and parent not in apart
            and at not in alone
        ):
            path.append(at)
            at = parent
        root, offset = known.setdefault(at, (at, 0))
        for inner in reversed(path):
            offset += values[inner].offset
            known[inner] = root, offset
    return [known[index] for index in range(len(values))]


def _last(over: Mapping[int, int], root: int) -> int:
    while root in over:
        root = over[root]
    return root


class SharedMemory:
    """Tells which row values of ``program`` lie in the same bytes."""

    def __init__(self, program: Program) -> None:
        self._program = program
        #: As ``roots`` says.
        self.roots = roots(program)

    @cached_property
    def _overlaps(self) -> dict[int, frozenset[int]]:
        """For each row value that shares bytes with others, these."""
        inside: dict[int, list[int]] = {}
        for number in range(len(self._program.row_values)):
            inside.setdefault(self._place(number)[0], []).append(number)
        found = {}
        for numbers in inside.values():
            for number in numbers:
                others = frozenset(other for other in numbers if self._overlap(number, other))
                if others != {number}:
                    found[number] = others - {number}
        return found

    def overlapping(self, row_value: int) -> frozenset[int]:
        """Return the other row values that lie, in part, where this one does."""
        return self._overlaps.get(row_value, frozenset())

    def clash(self, row_values: Collection[int]) -> bool:
        """Return whether two of ``row_values`` share bytes."""
        return any(not self.overlapping(value).isdisjoint(row_values) for value in row_values)

    def alike(self, one: int, other: int) -> bool:
        """Return whether row i of any plane of one overlaps with no other row of the other's planes."""
        values = [self._program.row_values[number] for number in (one, other)]
        if len({(value.height, value.row_bytes) for value in values}) > 1:
            return False
        apart = self._place(one)[1] - self._place(other)[1]
        return apart % (values[0].height * values[0].row_bytes) == 0

    def _overlap(self, one: int, other: int) -> bool:
        (_, start, end), (_, other_start, other_end) = map(self._place, (one, other))
        return max(start, other_start) < min(end, other_end)

    def _place(self, row_value: int) -> tuple[int, int, int]:
        """Return the value in whose memory a row value lies, and its bytes [start, end) there."""
        held = self._program.row_values[row_value]
        root, offset = self.roots[held.value]
        return root, offset, offset + held.n_bytes
