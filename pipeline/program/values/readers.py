"""Who reads what from memory: views, and values that others are joined of, have several names there."""

from functools import cached_property

from pipeline.program.program import Program


class Readers:
    """The readers of the values of ``program``, where its pieces run one after the other."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._after: dict[int, frozenset[int]] = {}

    def after(self, piece: int) -> frozenset[int]:
        """Return the program's values that pieces from ``piece`` on, or who asked, read from memory."""
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
        done: set[frozenset[int]] = set()  # what is seen: its names were all told
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
        values, found = self._program.values, dict[int, set[int]]()
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
                found.setdefault(root, set()).add(index)
        return {root: frozenset(names) for root, names in found.items()}

    @cached_property
    def seen(self) -> list[frozenset[int]]:
        """For each value, the values that pieces wrote which someone who reads it sees."""
        values = self._program.values
        written = {
            operand.index for piece in self._program.own_pieces for operand in piece.outputs
        } | {port.value for port in self._program.inputs}
        children: dict[int, list[int]] = {}
        for index, value in enumerate(values):
            if value.parent is not None:
                children.setdefault(value.parent, []).append(index)

        found = [frozenset((index,)) for index in range(len(values))]
        known = set(written)
        for index in range(len(values)):
            if index in known:
                continue
            # A value; else what it is joined of; else what it is a view of: all that is not written there
            # hangs together, and is the same memory to whoever reads it.
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
                found[each] = seen
            known |= together
        return found
