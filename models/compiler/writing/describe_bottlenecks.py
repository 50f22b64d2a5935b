"""Describe the bottlenecks of a partition for the manifest."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from models.compiler.analysis.slices import Slice
from models.compiler.cutting.bottlenecks import FoundBottleneck, GroupNodes, GroupTensor
from models.compiler.cutting.cut import inner_bytes
from models.compiler.cutting.layout import Layout
from models.compiler.cutting.partition import Partition
from models.graphs.nodes import made
from models.packs.records.bottlenecks import Bottleneck, GroupInput, GroupOperator
from models.packs.records.pieces import Operand


@dataclass(frozen=True)
class BottleneckDescriber:
    """Describes the bottlenecks of ``parts``, whose weights lie as ``layout`` says."""

    parts: Partition
    layout: Layout

    def bottlenecks(self) -> tuple[Bottleneck, ...]:
        """Return their records."""
        numbered = zip(self.parts.bottlenecks, self.parts.group_graphs, strict=True)
        return tuple(self._bottleneck(found, graphs) for found, graphs in numbered)

    def _bottleneck(self, found: FoundBottleneck, graphs: list[list[int]]) -> Bottleneck:
        own = [
            number
            for node in range(found.first_node, found.end_node)
            for number in self.parts.pieces_of(node)
        ]
        makers = {item.output: number for number, item in enumerate(found.operators)}
        return Bottleneck(
            first_piece=own[0],
            end_piece=own[-1] + 1,
            channels=found.channels,
            sizes=found.sizes,
            operators=tuple(
                self._operator(item, tuple(numbers), makers)
                for item, numbers in zip(found.operators, graphs, strict=True)
            ),
            output=self._row_values[found.operators[-1].output],
        )

    @functools.cached_property
    def _row_values(self) -> Mapping[str, int]:
        return {name: position for position, name in enumerate(self.parts.rows.planes)}

    def _operator(
        self, item: GroupNodes, graphs: tuple[int, ...], makers: Mapping[str, int]
    ) -> GroupOperator:
        piece = self.parts.whole(item.nodes[0], item.nodes[-1])
        return GroupOperator(
            kind=item.kind,
            graphs=graphs,
            inputs=tuple(self._input(tensor, item, makers) for tensor in item.inputs),
            shape=self._shape(item),
            scratch_bytes=inner_bytes(self.parts.graph, piece),
        )

    def _shape(self, item: GroupNodes) -> tuple[int, ...]:
        """Return the shape of what the last of its nodes that has a kernel makes; others name it anew."""
        computed = [index for index in item.nodes if index not in self.parts.aliases.elided]
        return self.parts.graph.array(made(self.parts.graph.nodes[computed[-1]])[0]).shape

    def _input(
        self, tensor: GroupTensor, item: GroupNodes, makers: Mapping[str, int]
    ) -> GroupInput:
        if tensor.name in makers:
            return GroupInput(made=makers[tensor.name], axis=tensor.axis, window=tensor.window)
        if tensor.name in self._row_values:
            number = self._row_values[tensor.name]
            return GroupInput(row_value=number, axis=tensor.axis, window=tensor.window)
        return GroupInput(weights=self._weights(tensor.name, item), axis=tensor.axis)

    def _weights(self, name: str, item: GroupNodes) -> Operand:
        array = self.parts.graph.array(name)
        spans = (
            self.layout.span_of[number]
            for index in item.nodes
            for number in self.parts.pieces_of(index)
            for piece in [self.parts.pieces[number]]
            if any(part.name == name for part in (*piece.weights, *piece.shared_weights))
        )
        index, offset = self.layout.locate(Slice(name, array.shape), next(spans, None))
        return Operand(
            kind="span", index=index, offset=offset, dtype=array.dtype, shape=array.shape
        )
