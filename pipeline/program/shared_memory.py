"""Which values lie in the memory of others, and the readers of what is there.

A residual sum often lies over what it adds, which nothing needs any more when the pieces run one after
the other. In a region they take turns: the sum's first rows are written while some of what it adds is yet
to be read. So these are loaded first (pipeline/program/many_rows.py).
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

from models.packs.records.pieces import Operand, Value, ValueBytes
from pipeline.program.program import Program

# Which values lie in the memory of others.


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
    places = _in_parents(program.values, apart, alone)
    if not over:
        return places
    return [(_last(over, root), offset) for root, offset in places]


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


class PlacedValues:
    """Finds where values of ``program``, and parts of them, lie."""

    def __init__(self, program: Program) -> None:
        self._roots = roots(program)

    def of(self, operand: Operand) -> ValueBytes[int]:
        """Return where an operand lies: in a value, or in a span."""
        if operand.kind == "span":
            return ValueBytes(operand.index, operand.offset, operand.offset + operand.n_bytes)
        return self.of_value(operand.index, operand.offset, operand.n_bytes)

    def of_value(self, value: int, offset: int, n_bytes: int) -> ValueBytes[int]:
        """Return where ``n_bytes`` from ``offset`` on of a value lie."""
        root, start = self._roots[value]
        return ValueBytes(root, start + offset, start + offset + n_bytes)


class SharedMemory:
    """Finds which row values of ``program`` lie in the same bytes."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._places = PlacedValues(program)

    @cached_property
    def _overlaps(self) -> dict[int, frozenset[int]]:
        """For each row value that shares bytes with others, these."""
        inside: dict[int, list[int]] = {}
        for number in range(len(self._program.row_values)):
            inside.setdefault(self._place(number).root, []).append(number)
        overlaps = {}
        for numbers in inside.values():
            for number in numbers:
                place = self._place(number)
                others = frozenset(each for each in numbers if place.overlaps(self._place(each)))
                if others != {number}:
                    overlaps[number] = others - {number}
        return overlaps

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
        apart = self._place(one).start - self._place(other).start
        return apart % (values[0].height * values[0].row_bytes) == 0

    def _place(self, row_value: int) -> ValueBytes[int]:
        value = self._program.row_values[row_value]
        return self._places.of_value(value.value, 0, value.n_bytes)


# The readers of what is in memory: views, and values that others are joined of, have several names there.


class Readers:
    """The readers of the values of ``program``, where its pieces run one after the other."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._after: dict[int, frozenset[int]] = {}

    def after(self, piece: int) -> frozenset[int]:
        """Return the program's values that pieces from ``piece`` on, or the caller, read from memory."""
        if piece not in self._after:
            last = self._last_reader.items()
            self._after[piece] = frozenset(value for value, reader in last if reader >= piece)
        return self._after[piece]

    @cached_property
    def _last_reader(self) -> dict[int, int]:
        """The last piece that reads each value; of an output one behind all."""
        own = self._program.own
        last: dict[int, int] = {}
        for seen in {self.seen[port.value] for port in self._program.outputs}:
            last.update(dict.fromkeys(self._named(seen), own.stop))
        done: set[frozenset[int]] = set()  # what is seen: all its names are listed
        for number in reversed(own):
            for operand in self._program.pieces[number].inputs:
                if operand.kind != "value" or (seen := self.seen[operand.index]) in done:
                    continue
                done.add(seen)
                for value in self._named(seen):
                    last.setdefault(value, number)
        return last

    def _named(self, seen: frozenset[int]) -> frozenset[int]:
        """Return what a reader sees, and the other names of just that: rows may have these."""
        return seen.union(*(self._views[each] for each in seen if each in self._views))

    @cached_property
    def _views(self) -> dict[int, frozenset[int]]:
        """For each value that pieces write, its other names: values that no piece writes, all of it."""
        values, names_of = self._program.values, dict[int, set[int]]()
        same: dict[int, int] = {}  # what each is another name of
        for index in range(len(values)):
            path, root = [], index
            while (
                root not in same
                and self.seen[root] != {root}
                and (parent := values[root].parent) is not None
                and values[parent].n_bytes == values[root].n_bytes
            ):
                path.append(root)
                root = parent
            root = same.setdefault(root, root)
            same.update(dict.fromkeys(path, root))
            if root != index:
                names_of.setdefault(root, set()).add(index)
        return {root: frozenset(names) for root, names in names_of.items()}

    @cached_property
    def seen(self) -> list[frozenset[int]]:
        """For each value, the values written by pieces that a reader of it sees."""
        values = self._program.values
        written = {
            operand.index for piece in self._program.own_pieces for operand in piece.outputs
        } | {port.value for port in self._program.inputs}
        children: dict[int, list[int]] = {}
        for index, value in enumerate(values):
            if value.parent is not None:
                children.setdefault(value.parent, []).append(index)

        values_seen = [frozenset((index,)) for index in range(len(values))]
        known = set(written)
        for index in range(len(values)):
            if index in known:
                continue
            # A value that no piece writes is joined of others or a view of one. All such values that
            # are connected are the same memory to every reader.
            together, waiting = {index}, [index]
            while waiting:
                nearest = waiting.pop()
                if nearest in written:
                    continue
                parent = values[nearest].parent
                beside = [*children.get(nearest, ()), *([] if parent is None else [parent])]
                waiting += (other for other in beside if other not in together)
                together.update(beside)
            seen = frozenset(together)
            for each in together - written:
                values_seen[each] = seen
            known |= together
        return values_seen
