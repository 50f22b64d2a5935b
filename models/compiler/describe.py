"""Describe what was compiled: the records of the manifest (models/manifest.py)."""

import hashlib
import itertools
from pathlib import Path

from models.checksum import checksum
from models.compiler.alias import Aliases
from models.compiler.graph import Graph
from models.compiler.layout import Layout
from models.compiler.resident import resident_record
from models.compiler.slices import CutPiece, Slice
from models.manifest import (
    FileRecord,
    GraphRange,
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


def graph_records(graphs: dict[bytes, int]) -> tuple[GraphRange, ...]:
    """Return the byte ranges of pieces.bin in the order of ``graphs``."""
    offsets = itertools.accumulate((len(data) for data in graphs), initial=0)
    return tuple(
        GraphRange(offset=offset, length=len(data))
        for offset, data in zip(offsets, graphs, strict=False)
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


def piece_records(
    graph: Graph,
    pieces: list[CutPiece],
    layout: Layout,
    graph_of: list[int],
    index: dict[str, int],
) -> tuple[Piece, ...]:
    """Return the pieces; ``index`` numbers the values."""

    def operand(part: Slice, piece: int) -> Operand:
        dtype = graph.array(part.name).dtype
        if part.name in index:
            return Operand(
                kind="value",
                index=index[part.name],
                offset=part.offset,
                dtype=dtype,
                shape=part.shape,
            )
        span, offset = layout.locate(part, piece)
        return Operand(kind="span", index=span, offset=offset, dtype=dtype, shape=part.shape)

    return tuple(
        Piece(
            graph=graph_of[position],
            span=layout.span_of[position],
            inputs=tuple(operand(part, position) for part in piece.inputs.values()),
            outputs=tuple(operand(part, position) for part in piece.outputs.values()),
            resident=resident_record(graph, piece),
        )
        for position, piece in enumerate(pieces)
    )


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
