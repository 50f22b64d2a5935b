"""Write a pack so that it appears whole or not at all: temporary folder, verdict, fsync, rename."""

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from onnx import TensorProto

from models.compiler.analysis.graph import Graph
from models.compiler.cutting.layout import PlannedSpan, SpanLayout, span_bytes
from models.compiler.cutting.piece_models import named_model
from models.compiler.writing.storing import Bytes, Storing
from models.errors import CompileError
from models.graphs.file import FileRange, tensor_at, tensor_in
from models.packs.folders import locked_folder, remove_leftovers
from models.packs.manifest import checksum
from models.packs.records.spans import Span, Stored

# From linux/fs.h and fcntl.h: exchange two paths in one step, paths relative to the working folder.
_RENAME_EXCHANGE = 2
_HERE = -100


@dataclass(frozen=True)
class Unfinished:
    """A pack that is not visible yet: ``pack``, named as it will be, and ``work`` for what is not in it."""

    pack: Path
    work: Path


@contextlib.contextmanager
def building(destination: Path, force: bool) -> Iterator[Unfinished]:
    """Yield two empty folders; the pack becomes ``destination`` when the block ends without an error.

    Raises:
        CompileError: the destination exists and ``force`` is not given, or cannot be written.
    """
    if destination.exists() and not force:
        raise CompileError(f"{destination}: exists; replace it with --force or use --version")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(destination.parent)
        with locked_folder(destination.parent, destination.name) as folder:
            unfinished = Unfinished(folder / destination.name, folder / "work")
            unfinished.pack.mkdir()
            unfinished.work.mkdir()
            yield unfinished
            _place(unfinished.pack, destination)
    except OSError as exc:
        where = exc.filename or destination
        raise CompileError(f"{where}: cannot write the pack: {exc.strerror or exc}") from exc
    finally:
        with contextlib.suppress(OSError):
            destination.parent.rmdir()  # succeeds only where nothing was built in it


def _place(pack: Path, destination: Path) -> None:
    """Move the finished ``pack`` to ``destination`` once all of it is on the disk."""
    for file in pack.iterdir():
        _fsync(file)
    _fsync(pack)
    put_in_place(pack, destination)
    _fsync(destination.parent)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_in_place(folder: Path, destination: Path) -> None:
    """Put ``folder`` at ``destination``; what is there is replaced in one step, never missing.

    Raises:
        OSError: the disk refuses it.
    """
    if not destination.exists():
        folder.rename(destination)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    paths = (os.fsencode(folder), os.fsencode(destination))
    if libc.renameat2(_HERE, paths[0], _HERE, paths[1], _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(destination))


def write_weights(
    graph: Graph, layout: SpanLayout, path: Path, storing: Storing | None = None
) -> tuple[Span, ...]:
    """Write weights.bin and return its spans; ``storing``: how they are stored, None: as they are.

    Spans of the same bytes are written once (layers that share their weights).

    Raises:
        CompileError: they cannot be stored so.
    """
    with path.open("w+b") as file:
        writer = _Writer(file)
        return tuple(
            writer.written(planned, None, span_bytes(graph, planned))
            if storing is None
            else writer.written(planned, *storing.stored(planned, writer.end))
            for planned in layout.spans
        )


def is_shorter(span: Span) -> bool:
    """Return whether ``span`` takes fewer bytes in the file than in memory."""
    return span.file_length < span.length


def unstored(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return ``spans``, none of which `is_shorter`, as kernels read them from where they lie."""
    return tuple(
        replace(span, stored=None, at=None if span.file_offset == span.offset else span.file_offset)
        for span in spans
    )


class _Writer:
    """Writes spans to ``file``, from its beginning to ``end``."""

    def __init__(self, file: BinaryIO) -> None:
        self.end = 0
        self._file = file
        self._starts: dict[tuple[object, ...], int] = {}

    def written(self, planned: PlannedSpan, stored: Stored | None, content: Bytes) -> Span:
        """Return the record of ``planned`` whose bytes in the file are ``content``."""
        digest = checksum(content.data)
        key = (digest, planned.length, None if stored is None else stored.parts)
        start = self._starts.setdefault(key, self.end)
        if start == self.end or not self._is_at(start, content):
            start = self.end
            self._file.write(content.data)
            self.end += len(content)
        return Span(
            offset=planned.offset,
            length=planned.length,
            checksum=digest,
            resident=planned.resident,
            stored=None if stored is None else replace(stored, offset=start),
            at=start if stored is None and start != planned.offset else None,
        )

    def _is_at(self, start: int, content: Bytes) -> bool:
        """Return whether the file has ``content`` there: equal checksums are no proof."""
        self._file.seek(start)
        held = self._file.read(len(content))
        self._file.seek(self.end)
        return held == content.tobytes()


def write_model(
    graph: Graph, title: str, layout: SpanLayout, spans: Sequence[Span], path: Path
) -> None:
    """Write model.onnx, nodes in the order of pieces.

    Weights refer to the ``spans`` of weights.bin, operator constants stay inside.
    """
    weights = path.with_name("weights.bin")
    starts = layout.file_offsets(graph, [span.file_offset for span in spans])

    def tensor(name: str) -> TensorProto:
        if name not in starts:  # a resident piece has it, or it is no weight
            return graph.tensor(name)
        array = graph.constants[name]
        return tensor_at(FileRange(weights, starts[name], array.nbytes), name, array)

    tensors = [tensor(name) for name in graph.constants_of(graph.nodes)]
    ports = graph.inputs, graph.outputs
    model = named_model(graph, title, graph.nodes, ports, tensors)
    path.write_bytes(model.SerializeToString())


def write_graph(graph: Graph, path: Path) -> Path:
    """Write ``graph`` as the model ``path``, with its weights in a file next to it; return it."""
    with path.with_suffix(".data").open("wb") as file:
        tensors = [
            graph.tensors[name]
            if name in graph.tensors
            else tensor_in(file, name, graph.constants[name])
            for name in graph.constants_of(graph.nodes)
        ]
    ports = graph.inputs, graph.outputs
    model = named_model(graph, path.stem, graph.nodes, ports, tensors)
    path.write_bytes(model.SerializeToString())
    return path
