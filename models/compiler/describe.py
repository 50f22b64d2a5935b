"""Describe what was compiled: the records of the manifest (models/manifest.py)."""

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from models.checksum import checksum
from models.compiler.alias import Aliases
from models.compiler.graph import Graph
from models.compiler.layout import Layout
from models.compiler.partition import Partition
from models.compiler.resident import resident_record
from models.compiler.scratch import scratch_bytes, session_bytes
from models.compiler.slices import CutAlternative, CutPiece, Slice
from models.manifest import (
    Alternative,
    FileRecord,
    GraphRange,
    Joined,
    Layer,
    Operand,
    Piece,
    Port,
    Source,
    Value,
)
from models.onnx_nodes import label


def source_record(path: Path) -> Source:
    """Return what was compiled: name, size and SHA-256 of the file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Source(file=path.name, n_bytes=path.stat().st_size, sha256=digest)


def file_records(folder: Path) -> dict[str, FileRecord]:
    """Return size and checksum of the files in ``folder``."""
    records = {"weights.bin": FileRecord(n_bytes=(folder / "weights.bin").stat().st_size)}
    for name in ("model.onnx", "pieces.bin"):
        data = (folder / name).read_bytes()
        records[name] = FileRecord(n_bytes=len(data), checksum=checksum(data))
    return records


def graph_records(parts: Partition) -> tuple[GraphRange, ...]:
    """Return the byte ranges of pieces.bin in the order of ``parts.graphs``, and what sessions take."""
    offsets = itertools.accumulate((len(data) for data in parts.graphs), initial=0)
    return tuple(
        GraphRange(
            offset=offset,
            length=len(data),
            session_bytes=session_bytes(parts.graph, piece, len(data)),
        )
        for offset, (data, piece) in zip(offsets, parts.graphs.items(), strict=False)
    )


def value_records(graph: Graph, aliases: Aliases) -> tuple[Value, ...]:
    """Return the values of ``graph`` and where those with a parent lie; of loose ones, the ports."""
    loose = dict.fromkeys(name for name in (*graph.inputs, *graph.outputs) if name in graph.loose)
    names = [*graph.values, *loose]
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

    parts: Partition
    layout: Layout
    index: Mapping[str, int]

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

    def _joined(self, cut: CutAlternative, graphs: list[int]) -> tuple[Joined, ...]:
        starts = {self.parts.pieces[i].weights[0].offset: i for i in range(cut.first, cut.end)}
        firsts = [starts[piece.weights[0].offset] for piece in cut.pieces]
        return tuple(
            Joined(graph=graph, n_chunks=end - first)
            for graph, (first, end) in zip(
                graphs, itertools.pairwise([*firsts, cut.end]), strict=True
            )
        )

    def _piece(self, piece: CutPiece, graph: int, span: int | None) -> Piece:
        return Piece(
            graph=graph,
            span=span,
            inputs=tuple(self._operand(part, span) for part in piece.inputs.values()),
            outputs=tuple(self._operand(part, span) for part in piece.outputs.values()),
            resident=resident_record(self.parts.graph, piece),
            scratch_bytes=scratch_bytes(self.parts.graph, piece),
        )

    def _operand(self, part: Slice, own: int | None) -> Operand:
        kind: Literal["value", "span"] = "value" if part.name in self.index else "span"
        if kind == "value":
            index, offset = self.index[part.name], part.offset
        else:
            index, offset = self.layout.locate(part, own)
        dtype = self.parts.graph.array(part.name).dtype
        return Operand(kind=kind, index=index, offset=offset, dtype=dtype, shape=part.shape)


def layer_records(graph: Graph, pieces: list[CutPiece], aliases: Aliases) -> tuple[Layer, ...]:
    """Return one entry a node with a kernel; nodes merged into one piece share its range."""
    layers = []
    for index, node in enumerate(graph.nodes):
        if index in aliases.elided:
            continue
        own = [i for i, piece in enumerate(pieces) if piece.first_node <= index < piece.end_node]
        layers.append(
            Layer(
                name=label(node),
                operator=node.op_type,
                weight_bytes=graph.weight_bytes(node),
                first_piece=own[0],
                end_piece=own[-1] + 1,
            )
        )
    return tuple(layers)


def port_records(graph: Graph, names: tuple[str, ...], index: dict[str, int]) -> tuple[Port, ...]:
    """Return graph inputs or outputs; ``index`` numbers the values."""
    return tuple(
        Port(
            name=name,
            dtype=graph.array(name).dtype,
            shape=graph.array(name).shape,
            value=index[name],
        )
        for name in names
    )
