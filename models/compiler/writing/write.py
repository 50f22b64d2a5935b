"""Write a pack so that it appears whole or not at all: hidden folder, verdict, fsync, rename."""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from models.atomic_folders import locked_folder, put_in_place, remove_leftovers
from models.compiler.cutting.layout import PlannedSpan, SpanLayout, span_bytes
from models.compiler.writing.storing import Bytes, Storing
from models.errors import CompileError
from models.graphs.graph import Graph, part_of, with_files
from models.graphs.writer import model_of, tensors_at
from models.packs.folders import clear_model
from models.packs.manifest import checksum
from models.packs.records.spans import Span, Stored

# What a rename answers where another process has put a folder by now, and an overlay that has no extended
# attributes where the folder around it is of a lower layer.
_NOT_MOVED = frozenset((errno.EEXIST, errno.ENOTEMPTY, errno.EXDEV))


@dataclass(frozen=True)
class Unfinished:
    """A pack that is not visible yet: ``pack``, named as it will be, and ``work`` for what is not in it.

    The folder around ``work`` has room for others whose names begin with a dot.
    """

    pack: Path
    work: Path


@contextlib.contextmanager
def building(destination: Path, force: bool) -> Iterator[Unfinished]:
    """Yield two empty folders; the pack becomes ``destination`` when the block ends without an error.

    They are on its disk, which may be another than the repository's if its model's folder is a link. The
    folder of a new model appears with its first version.

    Raises:
        CompileError: the destination exists and ``force`` is not given, or cannot be written.
    """
    model, repository = destination.parent, destination.parent.parent
    try:
        for folder in (repository, model):
            if os.path.lexists(folder) and not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        repository.mkdir(parents=True, exist_ok=True)
        remove_leftovers(repository)
        clear_model(model)
        if destination.exists() and not force:
            raise CompileError(f"{destination}: exists; replace it with --force or use --version")
        new = destination if model.is_dir() else model
        with locked_folder(new.parent, new.name) as hidden:
            pack = hidden / destination.relative_to(new.parent)
            pack.mkdir(parents=True)
            (hidden / ".work").mkdir()
            yield Unfinished(pack, hidden / ".work")
            _place(pack, destination, hidden / new.name)
    except OSError as exc:
        if exc.errno == errno.EXDEV:
            raise CompileError(
                f"{destination}: an overlay file system does not move folders of its lower layers: "
                "use another --version, or a folder on a volume"
            ) from exc
        where = exc.filename or destination
        raise CompileError(f"{where}: cannot write the pack: {exc.strerror or exc}") from exc


def _place(pack: Path, destination: Path, built: Path) -> None:
    """Move the finished ``pack`` to ``destination`` once all of it is on the disk.

    ``built``: what is renamed: the pack, or the folder of a new model with the pack in it.
    """
    for file in pack.iterdir():
        _fsync(file)
    _fsync(pack)
    if built == pack:
        put_in_place(pack, destination)
    else:
        _fsync(built)
        _move_model(pack, destination)
        _fsync(destination.parent.parent)
    _fsync(destination.parent)


def _move_model(pack: Path, destination: Path) -> None:
    """Move the folder around ``pack``, a new model's, or ``pack`` alone where that cannot be."""
    try:
        pack.parent.rename(destination.parent)
    except OSError as exc:
        if exc.errno not in _NOT_MOVED:
            raise
        destination.parent.mkdir(exist_ok=True)
        pack.rename(destination)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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

    # What is not there a resident piece has, or it is no weight.
    offsets = {name: (weights, start) for name, start in starts.items()}
    graph = part_of(graph, graph.nodes, graph.inputs, graph.outputs)
    model = model_of(graph, title=title, tensor=tensors_at(offsets))
    path.write_bytes(model.SerializeToString())


def write_graph(graph: Graph, path: Path) -> Path:
    """Write ``graph`` as the model ``path``, whose large weights lie in files next to it; return it."""
    model = model_of(with_files(graph, path.with_suffix(".data")), path.parent, path.stem)
    path.write_bytes(model.SerializeToString())
    return path
