"""Compile an ONNX file to a pack: read, optimise, alias, cut, lay out, write."""

import hashlib
import itertools
import math
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import onnx

from models.checksum import checksum
from models.compiler.alias import Aliases, find_aliases
from models.compiler.cut import CutPiece, Slice, cut, default_chunk_bytes
from models.compiler.graph import Graph, label
from models.compiler.layout import Layout, lay_out
from models.compiler.optimise import optimise
from models.compiler.pieces import serialise
from models.compiler.scratch import scratch_bytes, session_bytes
from models.compiler.write import building, write_model, write_weights
from models.errors import CompileError
from models.manifest import (
    Classification,
    FileRecord,
    GraphRange,
    Layer,
    Manifest,
    Operand,
    Piece,
    Port,
    Source,
    Value,
    write_manifest,
)
from models.onnx_reader import read_onnx
from models.preprocess import Preprocess
from models.target import host_target

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_STATISTICS = frozenset({3, 4})  # inputs of BatchNormalization that are not parameters

Progress = Callable[[str], None]


@dataclass(frozen=True)
class CompileOptions:
    """What the user decides; ``chunk_bytes`` None takes the default for the model's size."""

    version: int = 1
    batch: int = 1
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    chunk_bytes: int | None = None
    labels: tuple[str, ...] = ()
    preprocess: Preprocess | None = None
    scores: Literal["probabilities", "logits"] | None = None
    force: bool = False


def compile_onnx(
    source: Path,
    destination: Path,
    options: CompileOptions | None = None,
    progress: Progress = lambda step: None,
) -> Path:
    """Compile ``source`` into ``destination``/VERSION and return that folder.

    ``destination`` is REPOSITORY/NAME. ``progress`` is called with the name of each step.

    Raises:
        OnnxError: the source cannot be used.
        CompileError: it cannot be compiled, or the pack cannot be written.
    """
    options = options or CompileOptions()
    name = destination.name
    if not _NAME.fullmatch(name):
        raise CompileError(f"{destination}: {name!r} is not a model name (letters, digits, ._-)")
    progress("read")
    model = read_onnx(source, options.batch, options.shapes)
    parameters = _parameters(model)
    pack = destination / str(options.version)
    with building(pack, options.force) as folder:
        work = folder / "work"
        work.mkdir()
        _check_space(source, model.ByteSize(), work)
        progress("optimise")
        optimised, graph = optimise(model, source, work)
        del model
        progress("cut")
        aliases = find_aliases(graph)
        total = sum(graph.weight_bytes(node) for node in graph.nodes)
        chunk_bytes = options.chunk_bytes or default_chunk_bytes(total)
        pieces = cut(graph, aliases, host_target(), chunk_bytes)
        layout = lay_out(graph, pieces)
        graphs, graph_of = _serialised(graph, pieces, aliases)
        progress("write")
        spans = write_weights(graph, layout, folder / "weights.bin")
        write_model(optimised, graph, layout, folder / "model.onnx")
        (folder / "pieces.bin").write_bytes(b"".join(graphs))
        progress("measure")
        measured = session_bytes(graph, pieces, graphs)
        shutil.rmtree(work)
        values = _values(graph, aliases)
        index = {value.name: position for position, value in enumerate(values)}
        manifest = Manifest(
            name=name,
            target=host_target(),
            source=_source(source),
            files=_files(folder),
            spans=spans,
            graphs=_ranges(graphs),
            values=values,
            pieces=_pieces(graph, pieces, layout, graph_of, index),
            layers=_layers(graph, pieces, aliases),
            inputs=_ports(graph, graph.inputs, index),
            outputs=_ports(graph, graph.outputs, index),
            preprocess=_checked_preprocess(graph, options.preprocess),
            classification=_classification(graph, options),
            parameters=parameters,
            scratch_bytes=scratch_bytes(graph, pieces),
            session_bytes=measured,
        )
        write_manifest(manifest, folder / "manifest.json")
    return pack


def _parameters(model: onnx.ModelProto) -> int:
    """Count trainable numbers: floating-point weights except the statistics of batch norms."""
    statistics = {
        name
        for node in model.graph.node
        if node.op_type == "BatchNormalization"
        for position, name in enumerate(node.input)
        if position in _STATISTICS
    }
    floating = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
    return sum(
        math.prod(tensor.dims)
        for tensor in model.graph.initializer
        if tensor.data_type in floating and tensor.dims and tensor.name not in statistics
    )


def _check_space(source: Path, model_bytes: int, folder: Path) -> None:
    """Refuse early where the disk cannot hold the two working copies and the pack."""
    needed = 3 * model_bytes
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CompileError(
            f"{folder.parent.parent}: no space to compile {source.name}: "
            f"needs {needed} bytes, {free} are free"
        )


def _serialised(
    graph: Graph, pieces: list[CutPiece], aliases: Aliases
) -> tuple[dict[bytes, int], list[int]]:
    """Return each distinct piece with the first that uses it, and the graph index of every piece."""
    graphs: dict[bytes, int] = {}
    numbers: dict[bytes, int] = {}
    graph_of = []
    for position, piece in enumerate(pieces):
        data = serialise(graph, piece, aliases.elided)
        graphs.setdefault(data, position)
        graph_of.append(numbers.setdefault(data, len(numbers)))
    return graphs, graph_of


def _source(path: Path) -> Source:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Source(file=path.name, n_bytes=path.stat().st_size, sha256=digest)


def _files(folder: Path) -> dict[str, FileRecord]:
    records = {"weights.bin": FileRecord(n_bytes=(folder / "weights.bin").stat().st_size)}
    for name in ("model.onnx", "pieces.bin"):
        data = (folder / name).read_bytes()
        records[name] = FileRecord(n_bytes=len(data), checksum=checksum(data))
    return records


def _ranges(graphs: dict[bytes, int]) -> tuple[GraphRange, ...]:
    offsets = itertools.accumulate((len(data) for data in graphs), initial=0)
    return tuple(
        GraphRange(offset=offset, length=len(data))
        for offset, data in zip(offsets, graphs, strict=False)
    )


def _values(graph: Graph, aliases: Aliases) -> tuple[Value, ...]:
    names = list(graph.values)
    index = {name: position for position, name in enumerate(names)}
    values = []
    for name in names:
        parent, offset = aliases.parents.get(name, (None, 0))
        array = graph.values[name]
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


def _pieces(
    graph: Graph,
    pieces: list[CutPiece],
    layout: Layout,
    graph_of: list[int],
    index: dict[str, int],
) -> tuple[Piece, ...]:
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
        )
        for position, piece in enumerate(pieces)
    )


def _layers(graph: Graph, pieces: list[CutPiece], aliases: Aliases) -> tuple[Layer, ...]:
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


def _ports(graph: Graph, names: tuple[str, ...], index: dict[str, int]) -> tuple[Port, ...]:
    return tuple(
        Port(
            name=name,
            dtype=graph.values[name].dtype,
            shape=graph.values[name].shape,
            value=index[name],
        )
        for name in names
    )


def _checked_preprocess(graph: Graph, preprocess: Preprocess | None) -> Preprocess | None:
    if preprocess is None:
        return None
    shape = graph.values[graph.inputs[0]].shape
    if len(graph.inputs) != 1 or shape != preprocess.shape:
        raise CompileError(
            f"preprocessing makes one tensor of shape {list(preprocess.shape)}; "
            f"input {graph.inputs[0]!r} has {list(shape)}"
        )
    return preprocess


def _classification(graph: Graph, options: CompileOptions) -> Classification | None:
    """Describe the scores where labels are given or the only output is a vector of scores."""
    output = graph.outputs[0]
    array = graph.values[output]
    classes = array.shape[1] if len(array.shape) > 1 else 0
    is_vector = len(graph.outputs) == 1 and classes > 1 and math.prod(array.shape) == classes
    if options.labels and (not is_vector or len(options.labels) != classes):
        raise CompileError(
            f"{len(options.labels)} labels given; output {output!r} has shape {list(array.shape)}"
        )
    if not is_vector or array.dtype != "float32":
        return None
    maker = next(node for node in reversed(graph.nodes) if output in node.output)
    scores = options.scores or ("probabilities" if maker.op_type == "Softmax" else "logits")
    return Classification(output=output, scores=scores, labels=options.labels)
