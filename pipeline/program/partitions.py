"""Partitions: a network cut between pieces into parts that compute at once (seed 000, Section 2.2).

A partition is a network: what crosses into it are its inputs, what crosses out of it its outputs. So
planner, schedule and engine know nothing of partitions. Values, spans, graphs and row operators keep their
numbers: weights.bin and profiles are those of the whole. Pieces are counted anew, so row operators of parts
before have negative ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

from models.packs.records.bottlenecks import Bottleneck
from models.packs.records.pieces import Alternative, Layer
from models.packs.records.ports import Port
from models.packs.records.rows import RowOperator, RowValue
from models.packs.records.spans import Span
from pipeline.program.program import Program
from pipeline.program.row_network import RowNetwork
from pipeline.program.steps import row_network

#: Values of an edge begin on this many bytes, as they do in an arena.
_ALIGNMENT = 64


_Ranged = TypeVar("_Ranged", Alternative, Bottleneck, Layer, RowOperator, RowValue)


class PartitionError(Exception):
    """A network cannot be cut there; the message says where."""


class Cuts:
    """The places where the network of ``program`` can be cut: pieces before which a partition begins."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._network: RowNetwork = row_network(program)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """All places, ascending: between layers, where what crosses has a size."""
        inner = {piece for pieces in self._whole() for piece in pieces[1:]}
        starts = sorted({layer.first_piece for layer in self._program.layers} - inner)
        values, last = self._program.values, len(self._program.pieces)
        return tuple(
            place
            for place in starts
            if 0 < place < last
            and not any(values[value].is_loose for value in self.crossing(place))
        )

    def crossing(self, place: int) -> tuple[int, ...]:
        """Return the values that are made before piece ``place`` and read from there on, or answers."""
        return tuple(
            value
            for value in sorted(self._network.readers.after(place))
            if self._first_made.get(value, place) < place
        )

    def edge_bytes(self, place: int) -> int:
        """Return what the values take that cross at ``place``, each on its own lines of a cache."""
        return sum(aligned(self._program.values[value].n_bytes) for value in self.crossing(place))

    def parts(self, places: Sequence[int]) -> tuple[Program, ...]:
        """Return the partitions that begin at piece 0 and at ``places``, ascending; of none the network.

        Raises:
            PartitionError: the network cannot be cut at one of them.
        """
        if not places:
            return (self._program,)
        for place in places:
            if place not in self.places:
                raise PartitionError(f"{self._program.name}: cannot be cut before piece {place}")
        bounds = (0, *places, len(self._program.pieces))
        if any(first >= end for first, end in pairwise(bounds)):
            raise PartitionError(f"{self._program.name}: a partition without pieces")
        return tuple(map(self._part, bounds, bounds[1:]))

    def _part(self, first: int, end: int) -> Program:
        whole = self._program
        inside = range(first, end)
        pieces = whole.pieces[first:end]
        operands = (operand for piece in pieces for operand in piece.inputs)
        used = {operand.index for operand in operands if operand.kind == "span"}
        return replace(
            whole,
            pieces=pieces,
            spans=tuple(_span(span, n in used) for n, span in enumerate(whole.spans)),
            alternatives=tuple(_moved(whole.alternatives, inside)),
            row_operators=tuple(_shifted(item, first) for item in whole.row_operators),
            bottlenecks=tuple(
                item for item in _moved(whole.bottlenecks, inside) if item.end_piece <= len(pieces)
            ),
            row_values=tuple(_row_value(value, inside) for value in whole.row_values),
            layers=tuple(_moved(whole.layers, inside)),
            inputs=self._ports(first) if first else whole.inputs,
            outputs=self._ports(end) if end < len(whole.pieces) else whole.outputs,
        )

    def _ports(self, place: int) -> tuple[Port, ...]:
        values = self._program.values
        return tuple(
            Port(
                name=f"{values[value].name}#{value}",
                value=value,
                dtype=values[value].dtype,
                shape=values[value].shape,
            )
            for value in self.crossing(place)
        )

    def _whole(self) -> Iterable[range]:
        """Yield ranges of pieces that stay together: chunks of a layer, and what runs on rows as one."""
        yield from _ranges(self._program.alternatives)
        yield from _ranges(self._network.operators)
        yield from _ranges(self._network.values)

    @cached_property
    def _first_made(self) -> dict[int, int]:
        """The first piece that writes to each value; of an input one before all."""
        made = {port.value: -1 for port in self._program.inputs}
        for number, piece in enumerate(self._program.pieces):
            for operand in piece.outputs:
                made.setdefault(operand.index, number)
        return made


def _ranges(items: Iterable[_Ranged]) -> Iterable[range]:
    return (range(item.first_piece, item.end_piece) for item in items)


def aligned(n_bytes: int) -> int:
    """Return what a value of ``n_bytes`` takes in the buffer of an edge."""
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT


def _span(span: Span, used: bool) -> Span:
    """Return ``span`` as a partition has it: what only others use keeps its number, and no bytes."""
    return span if used else replace(span, length=0, resident=False, stored=None)


def _moved(items: Iterable[_Ranged], inside: range) -> Iterable[_Ranged]:
    return (_shifted(item, inside.start) for item in items if item.first_piece in inside)


def _shifted(item: _Ranged, by: int) -> _Ranged:
    return replace(item, first_piece=item.first_piece - by, end_piece=item.end_piece - by)


def _row_value(value: RowValue, inside: range) -> RowValue:
    """Return ``value`` as a partition has it: where others put it together, it is there whole."""
    if not value.end_piece:
        return value
    if value.first_piece in inside:
        return _shifted(value, inside.start)
    return replace(value, parts=(), first_piece=0, end_piece=0)
