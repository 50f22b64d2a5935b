"""Describe what was compiled: the records of the manifest (models/packs/records/)."""

import base64
import functools
import hashlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.compiler.analysis.alias import Aliases
from models.compiler.analysis.pieces import CutAlternative, CutPiece, Slice
from models.compiler.cutting.bottlenecks import FoundBottleneck, GroupNodes, GroupTensor
from models.compiler.cutting.cut import inner_bytes
from models.compiler.cutting.layout import SpanLayout
from models.compiler.cutting.partition import CutGraph
from models.compiler.cutting.piece_models import resident_record
from models.compiler.cutting.row_nodes import RowNode
from models.compiler.cutting.scratch import Sizes
from models.compiler.writing.describe_programs import ProgramDescriber, QuantisedDescriber
from models.graphs.graph import Graph
from models.packs.manifest import TOKENIZER, checksum
from models.packs.names import SHAPE_FILES
from models.packs.records.pieces import (
    Alternative,
    GraphRange,
    JoinedPieces,
    Layer,
    Operand,
    Piece,
    Unrolled,
    Value,
)
from models.packs.records.ports import Port, SourceFile
from models.packs.records.row_parts import (
    Bottleneck,
    GroupInput,
    GroupOperator,
    RowInput,
    RowOperator,
    RowPart,
    RowValue,
)
from models.packs.records.spans import FileRecord


def source_record(path: Path) -> SourceFile:
    """Return what was compiled: name, size and SHA-256 of the file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return SourceFile(file=path.name, n_bytes=path.stat().st_size, sha256=digest)


def file_records(folder: Path) -> dict[str, FileRecord]:
    """Return size and checksum of the files in ``folder``."""
    records = {"weights.bin": FileRecord(n_bytes=(folder / "weights.bin").stat().st_size)}
    for name in ("model.onnx", "pieces.bin", *SHAPE_FILES, TOKENIZER):
        if not (folder / name).exists():
            continue  # what no other runtime could read the weights of; it takes no texts
        data = (folder / name).read_bytes()
        records[name] = FileRecord(n_bytes=len(data), checksum=checksum(data))
    return records


def graph_records(parts: CutGraph, sizes: Sizes, offsets: Iterable[int]) -> tuple[GraphRange, ...]:
    """Return the byte ranges of pieces.bin in the order of ``parts.graphs``, and what sessions take."""
    return tuple(
        GraphRange(
            offset=offset,
            length=len(data),
            session_bytes=sizes.session_bytes(piece, data),
        )
        for offset, (data, piece) in zip(offsets, parts.graphs.items(), strict=True)
    )


def value_records(graph: Graph, aliases: Aliases) -> tuple[Value, ...]:
    """Return the values of ``graph`` and where those with a parent lie; of dynamic ones, the ports."""
    dynamic = dict.fromkeys(
        name for name in (*graph.inputs, *graph.outputs) if name in graph.dynamic
    )
    names = [*graph.values, *dynamic]
    index = {name: position for position, name in enumerate(names)}
    values = []
    for name in names:
        parent, offset = aliases.parents.get(name, (None, 0))
        array = graph.array(name)
        values.append(
            Value(
                name=name,
                dtype=array.dtype,
                shape=array.shape,
                parent=None if parent is None else index[parent],
                offset=offset,
            )
        )
    return tuple(values)


@dataclass(frozen=True)
class PieceDescriber:
    """Describes the pieces of ``parts``, whose weights lie as ``layout`` says; ``index`` numbers values."""

    parts: CutGraph
    layout: SpanLayout
    index: Mapping[str, int]
    sizes: Sizes
    programs: ProgramDescriber
    quantised: QuantisedDescriber

    def pieces(self) -> tuple[Piece, ...]:
        """Return the records of the finest pieces."""
        numbered = zip(self.parts.pieces, self.parts.graph_of, self.layout.span_of, strict=True)
        return tuple(self._piece(*item) for item in numbered)

    def alternatives(self) -> tuple[Alternative, ...]:
        """Return the records of how runs of them can be joined."""
        numbered = zip(self.parts.alternatives, self.parts.alternative_graphs, strict=True)
        return tuple(
            Alternative(first_piece=cut.first, end_piece=cut.end, joined=self._joined(cut, graphs))
            for cut, graphs in numbered
        )

    def _joined(self, cut: CutAlternative, graphs: list[int]) -> tuple[JoinedPieces, ...]:
        starts = {self.parts.pieces[i].weights[0].offset: i for i in range(cut.first, cut.end)}
        firsts = [starts[piece.weights[0].offset] for piece in cut.pieces]
        runs = itertools.pairwise([*firsts, cut.end])
        return tuple(
            JoinedPieces(
                graph=graph,
                n_chunks=end - first,
                scratch_bytes=self._more_scratch(piece, graph, range(first, end)),
                unrolled=self._unrolled(piece, graph),
                elementwise=self.programs.piece(piece),
            )
            for piece, graph, (first, end) in zip(cut.pieces, graphs, runs, strict=True)
        )

    def _more_scratch(self, piece: CutPiece, graph: int, run: range) -> int:
        """Return the scratch of ``piece`` where it is more than that of the chunks ``run``, else 0."""
        own = self._scratch(piece, graph)
        held = max(self._scratch(self.parts.pieces[i], self.parts.graph_of[i]) for i in run)
        return own if own > held else 0

    def _scratch(self, piece: CutPiece, graph: int) -> int:
        return self.sizes.scratch_bytes(piece, self._data[graph])

    def _unrolled(self, piece: CutPiece, graph: int) -> Unrolled | None:
        return self.sizes.unrolled(piece, self._data[graph])

    @functools.cached_property
    def _data(self) -> tuple[bytes, ...]:
        return tuple(self.parts.graphs)

    def _piece(self, piece: CutPiece, graph: int, span: int | None) -> Piece:
        return Piece(
            graph=graph,
            span=span,
            inputs=tuple(self._operand(part, span) for part in piece.inputs.values()),
            outputs=tuple(self._operand(part, span) for part in piece.outputs.values()),
            resident=resident_record(self.parts.graph, piece),
            scratch_bytes=self._scratch(piece, graph),
            unrolled=self._unrolled(piece, graph),
            elementwise=self.programs.piece(piece),
            quantised=self.quantised.piece(piece, self._data[graph]),
            page_checksums=None
            if piece.page_checksums is None
            else self._operand(piece.page_checksums, None),
        )

    def _operand(self, part: Slice, own: int | None) -> Operand:
        kind: Literal["value", "span"] = "value" if part.name in self.index else "span"
        if kind == "value":
            index, offset = self.index[part.name], part.offset
        else:
            index, offset = self.layout.locate(part, own)
        dtype = self.parts.graph.array(part.name).dtype
        return Operand(kind=kind, index=index, offset=offset, dtype=dtype, shape=part.shape)


@dataclass(frozen=True)
class RowDescriber:
    """Describes the operators on rows of ``parts``, and its bottlenecks; as ``PieceDescriber``."""

    parts: CutGraph
    layout: SpanLayout
    index: Mapping[str, int]
    programs: ProgramDescriber

    def values(self) -> tuple[RowValue, ...]:
        """Return the records of what they read and make."""
        copied = {
            name: (row.index, parts)
            for row in self.parts.rows.nodes
            for name, parts in zip(row.outputs, row.parts, strict=False)
        }
        return tuple(
            self._value(name, *copied.get(name, (None, ()))) for name in self.parts.rows.planes
        )

    def _value(
        self, name: str, node: int | None, parts: tuple[tuple[str, int, int], ...]
    ) -> RowValue:
        own = range(0) if node is None else self.parts.pieces_of(node)
        return RowValue(
            name=name,
            dtype=self.parts.graph.array(name).dtype,
            shape=self.parts.rows.shapes[name],
            value=self.index[name],
            planes=self.parts.rows.planes[name],
            parts=tuple(
                RowPart(row_value=self._numbers[part], first_plane=first, planes=planes)
                for part, first, planes in parts
            ),
            first_piece=own[0] if own else 0,
            end_piece=own[-1] + 1 if own else 0,
        )

    def operators(self) -> tuple[RowOperator, ...]:
        """Return the records of the operators that have a kernel."""
        numbered = zip(self.parts.rows.nodes, self.parts.row_graphs, strict=True)
        return tuple(self._operator(row, graph) for row, graph in numbered if graph is not None)

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.parts.rows.planes)}

    def _operator(self, row: RowNode, graph: int) -> RowOperator:
        own = self.parts.pieces_of(row.index)
        return RowOperator(
            graph=graph,
            first_piece=own[0],
            end_piece=own[-1] + 1,
            inputs=tuple(
                RowInput(row_value=self._numbers[name], window=window, fill=row.fill)
                for name, window in row.inputs
            ),
            weights=tuple(self._weight(name, self.layout.span_of[own[0]]) for name in row.weights),
            output=self._numbers[row.outputs[0]],
            in_place=row.in_place,
            elementwise=self.programs.row_operator(row),
            unrolled=row.unrolled,
            exact=row.exact,
        )

    def _weight(self, name: str, span: int | None) -> Operand:
        array = self.parts.graph.array(name)
        index, offset = self.layout.locate(Slice(name, array.shape), span)
        return Operand(
            kind="span", index=index, offset=offset, dtype=array.dtype, shape=array.shape
        )

    def bottlenecks(self) -> tuple[Bottleneck, ...]:
        """Return their records."""
        numbered = zip(self.parts.bottlenecks, self.parts.group_graphs, strict=True)
        return tuple(self._bottleneck(bottleneck, graphs) for bottleneck, graphs in numbered)

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
                self._group_operator(item, tuple(numbers), makers)
                for item, numbers in zip(found.operators, graphs, strict=True)
            ),
            output=self._numbers[found.operators[-1].output],
        )

    def _group_operator(
        self, item: GroupNodes, graphs: tuple[int, ...], makers: Mapping[str, int]
    ) -> GroupOperator:
        piece = self.parts.whole(item.nodes[0], item.nodes[-1])
        return GroupOperator(
            kind=item.kind,
            graphs=graphs,
            inputs=tuple(self._group_input(tensor, item, makers) for tensor in item.inputs),
            shape=self._group_shape(item),
            scratch_bytes=inner_bytes(self.parts.graph, piece),
        )

    def _group_shape(self, item: GroupNodes) -> tuple[int, ...]:
        """Return the shape of what the last of its nodes that has a kernel makes; others name it anew."""
        computed = [index for index in item.nodes if index not in self.parts.aliases.elided]
        return self.parts.graph.array(self.parts.graph.nodes[computed[-1]].made[0]).shape

    def _group_input(
        self, tensor: GroupTensor, item: GroupNodes, makers: Mapping[str, int]
    ) -> GroupInput:
        if tensor.name in makers:
            return GroupInput(made=makers[tensor.name], axis=tensor.axis, window=tensor.window)
        if tensor.name in self._numbers:
            number = self._numbers[tensor.name]
            return GroupInput(row_value=number, axis=tensor.axis, window=tensor.window)
        return GroupInput(weights=self._group_weight(tensor.name, item), axis=tensor.axis)

    def _group_weight(self, name: str, item: GroupNodes) -> Operand:
        spans = (
            self.layout.span_of[number]
            for index in item.nodes
            for number in self.parts.pieces_of(index)
            for piece in [self.parts.pieces[number]]
            if any(part.name == name for part in (*piece.weights, *piece.shared_weights))
        )
        return self._weight(name, next(spans, None))


def layer_records(parts: CutGraph) -> tuple[Layer, ...]:
    """Return one entry a node with a kernel, or several that are fused.

    Those merged into one piece share its range.
    """
    graph, layers, end = parts.graph, [], 0
    for index in range(len(graph.nodes)):
        if index in parts.aliases.elided or index < end:
            continue
        end = parts.fused[index].end if index in parts.fused else index + 1
        nodes = graph.nodes[index:end]
        own = parts.pieces_of(index)
        layers.append(
            Layer(
                name=nodes[0].label,
                operator="+".join(node.op_type for node in nodes),
                weight_bytes=sum(graph.weight_bytes(node) for node in nodes),
                first_piece=own[0],
                end_piece=own[-1] + 1,
            )
        )
    return tuple(layers)


def port_records(
    graph: Graph,
    names: tuple[str, ...],
    index: Mapping[str, int],
    defaults: Mapping[str, NDArray[Any]] = MappingProxyType({}),
) -> tuple[Port, ...]:
    """Return graph inputs or outputs, those with a default last; ``index`` numbers the values."""
    return tuple(
        Port(
            name=name,
            dtype=graph.array(name).dtype,
            shape=graph.array(name).shape,
            value=index[name],
            default=_encoded(defaults.get(name)),
        )
        for name in sorted(names, key=lambda name: name in defaults)
    )


def _encoded(default: NDArray[Any] | None) -> str | None:
    if default is None:
        return None
    return base64.b64encode(np.ascontiguousarray(default).tobytes()).decode()
