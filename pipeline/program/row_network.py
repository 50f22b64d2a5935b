"""The part of a model that can run on rows, with who makes and who reads what."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from models.packs.manifest import Manifest, RowOperator, RowValue


@dataclass(frozen=True)
class Part:
    """Planes of a row value: where they begin in what reads them."""

    row_value: int
    first_plane: int


class RowNetwork:
    """The row operators of ``manifest``, by the pieces that they replace."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.operators: tuple[RowOperator, ...] = manifest.row_operators
        self.values: tuple[RowValue, ...] = manifest.row_values
        self.maker = {item.output: number for number, item in enumerate(self.operators)}

    @cached_property
    def covered(self) -> frozenset[int]:
        """The pieces that row operators replace."""
        return frozenset(
            piece for item in self.operators for piece in range(item.first_piece, item.end_piece)
        )

    @cached_property
    def runs(self) -> list[range]:
        """Ranges of pieces, as long as possible, that are all covered."""
        found: list[range] = []
        for piece in sorted(self.covered):
            if found and found[-1].stop == piece:
                found[-1] = range(found[-1].start, piece + 1)
            else:
                found.append(range(piece, piece + 1))
        return found

    def within(self, pieces: range) -> range | None:
        """Return the operators that replace ``pieces``; None where they do not begin or end there."""
        inside = [
            number
            for number, item in enumerate(self.operators)
            if item.first_piece < pieces.stop and pieces.start < item.end_piece
        ]
        whole = all(
            pieces.start <= self.operators[number].first_piece
            and self.operators[number].end_piece <= pieces.stop
            for number in inside
        )
        if not inside or not whole or not self.covered.issuperset(pieces):
            return None
        return range(inside[0], inside[-1] + 1)

    def parts(self, row_value: int, first_plane: int = 0) -> Iterator[Part]:
        """Yield the values, each of one maker, that ``row_value`` is made of."""
        held = self.values[row_value]
        if not held.parts:
            yield Part(row_value, first_plane)
        for part in held.parts:
            yield from self.parts(part, first_plane)
            first_plane += self.values[part].planes

    def read_after(self, piece: int) -> frozenset[int]:
        """Return the manifest's values that pieces from ``piece`` on, or who asked, read from memory."""
        return self._read_after[piece]

    @cached_property
    def _read_after(self) -> list[frozenset[int]]:
        read = {value for port in self.manifest.outputs for value in self._seen[port.value]}
        after = [frozenset(read)]
        for piece in reversed(self.manifest.pieces):
            for operand in piece.inputs:
                if operand.kind == "value":
                    read |= self._seen[operand.index]
            after.append(frozenset(read))
        return after[::-1]

    @cached_property
    def _seen(self) -> list[frozenset[int]]:
        """For each value, the values that pieces wrote which someone who reads it sees."""
        values = self.manifest.values
        written = {operand.index for piece in self.manifest.pieces for operand in piece.outputs} | {
            port.value for port in self.manifest.inputs
        }
        children: dict[int, list[int]] = {}
        for index, value in enumerate(values):
            if value.parent is not None:
                children.setdefault(value.parent, []).append(index)

        def seen(index: int, asked: frozenset[int]) -> frozenset[int]:
            """Return what is seen: the value; else what it is joined of; else what it is a view of."""
            if index in written or index in asked:
                return frozenset((index,))
            asked |= {index}
            parent = values[index].parent
            beside = [*children.get(index, ()), *([] if parent is None else [parent])]
            return frozenset((index,)).union(*(seen(other, asked) for other in beside))

        return [seen(index, frozenset()) for index in range(len(values))]
