"""Partitions: a network cut between pieces into parts that compute at once (seed 000, Section 2.2).

A partition is a network: what crosses into it are its inputs, what crosses out of it its outputs. So
planner, schedule and engine need nothing about partitions. Everything keeps its number: weights.bin,
profiles and regions are those of the whole.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

from models.packs.records.pieces import Layer
from models.packs.records.ports import Port
from models.packs.records.row_parts import Bottleneck, RowOperator, RowValue
from models.packs.records.spans import Span
from pipeline.program.program import PreparedAlternative, Program
from pipeline.program.row_network import RowNetwork
from pipeline.program.steps import row_network

#: Values of an edge begin on this many bytes, as they do in an arena.
_ALIGNMENT = 64


_Ranged = TypeVar("_Ranged", PreparedAlternative, Bottleneck, Layer, RowOperator, RowValue)


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
        values, own = self._program.values, self._program.own
        return tuple(
            place
            for place in starts
            if own.start < place < own.stop
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
        """Return the partitions that begin first and at ``places``, ascending; of none the network.

        Raises:
            PartitionError: the network cannot be cut at one of them.
        """
        if not places:
            return (self._program,)
        for place in places:
            if place not in self.places:
                raise PartitionError(f"{self._program.name}: cannot be cut before piece {place}")
        own = self._program.own
        bounds = (own.start, *places, own.stop)
        if any(first >= end for first, end in pairwise(bounds)):
            raise PartitionError(f"{self._program.name}: a partition without pieces")
        return tuple(map(self._part, bounds, bounds[1:]))

    def _part(self, first: int, end: int) -> Program:
        whole, own = self._program, range(first, end)
        operands = (operand for piece in whole.pieces[first:end] for operand in piece.inputs)
        used = {operand.index for operand in operands if operand.kind == "span"}
        used |= {
            span for piece in whole.pieces[first:end] if (span := piece.table_span) is not None
        }
        return replace(
            whole,
            own=own,
            spans=tuple(_span(span, n in used) for n, span in enumerate(whole.spans)),
            alternatives=_inside(own, whole.alternatives),
            bottlenecks=_inside(own, whole.bottlenecks),
            row_values=tuple(_row_value(value, own) for value in whole.row_values),
            layers=_inside(own, whole.layers),
            inputs=whole.inputs if first == whole.own.start else self._ports(first),
            outputs=whole.outputs if end == whole.own.stop else self._ports(end),
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
        writers = {port.value: -1 for port in self._program.inputs}
        for number in self._program.own:
            for operand in self._program.pieces[number].outputs:
                writers.setdefault(operand.index, number)
        return writers


def _ranges(items: Iterable[_Ranged]) -> Iterable[range]:
    return (range(item.first_piece, item.end_piece) for item in items)


def aligned(n_bytes: int) -> int:
    """Return what a value of ``n_bytes`` takes in the buffer of an edge."""
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT


def _span(span: Span, used: bool) -> Span:
    """Return ``span`` as a partition has it: what only others use keeps its number, and no bytes."""
    return span if used else replace(span, length=0, resident=False, stored=None)


def _inside(pieces: range, items: Sequence[_Ranged]) -> tuple[_Ranged, ...]:
    """Return those of ``items`` that lie in ``pieces`` with all of theirs."""
    return tuple(
        item for item in items if item.first_piece in pieces and item.end_piece <= pieces.stop
    )


def _row_value(value: RowValue, own: range) -> RowValue:
    """Return ``value`` as a partition has it: where others put it together, it is there whole."""
    if not value.end_piece or value.first_piece in own:
        return value
    return replace(value, parts=(), first_piece=0, end_piece=0)
