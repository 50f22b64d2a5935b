"""Write the files of a pack."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import onnxruntime as ort

from models.compiler.cutting.layout import PlannedSpan, SpanLayout, span_bytes
from models.compiler.optimising.by_onnxruntime import optimised
from models.compiler.optimising.exact_sums import ExactSums
from models.compiler.writing.storing import Bytes, Storing
from models.graphs.graph import Graph, part_of, with_files
from models.graphs.reader import graph_at
from models.graphs.writer import model_of, tensors_at
from models.packs.manifest import checksum
from models.packs.records.spans import Span, Stored
from models.packs.target import host_target


class StoreFiles:
    """weights.bin and pieces.bin in ``folder``, to which each shape of a pack adds what is not there.

    ``weight_bytes``: of weights.bin so far.
    """

    def __init__(self, folder: Path) -> None:
        self.weight_bytes = 0
        self._folder = folder
        self._starts: dict[tuple[object, ...], int] = {}
        self._graphs: dict[bytes, int] = {}
        self._graph_bytes = 0

    def add_weights(
        self, graph: Graph, layout: SpanLayout, storing: Storing | None = None
    ) -> tuple[Span, ...]:
        """Write weights and return their spans; ``storing``: how they are stored, None: as they are.

        Spans of the same bytes are written once (layers that share their weights, and shapes).

        Raises:
            CompileError: they cannot be stored so.
        """
        with (self._folder / "weights.bin").open("r+b" if self._starts else "w+b") as file:
            writer = _Writer(file, self._starts, self.weight_bytes)
            spans = tuple(
                writer.written(planned, None, span_bytes(graph, planned))
                if storing is None
                else writer.written(planned, *storing.stored(planned, writer.end))
                for planned in layout.spans
            )
            self.weight_bytes = writer.end
        return spans

    def add_graphs(self, graphs: Collection[bytes]) -> list[int]:
        """Write serialised pieces; return where each begins."""
        with (self._folder / "pieces.bin").open("ab") as file:
            for graph in graphs:
                if graph not in self._graphs:
                    self._graphs[graph] = self._graph_bytes
                    self._graph_bytes += file.write(graph)
        return [self._graphs[graph] for graph in graphs]


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
    """Writes spans to ``file``, up to ``end``; ``starts``: where those are that it has."""

    def __init__(self, file: BinaryIO, starts: dict[tuple[object, ...], int], end: int) -> None:
        self.end = end
        self._file = file
        self._starts = starts
        file.seek(end)

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
    """Write ``graph`` as the model ``path``, whose large weights lie in files next to it; return it.

    ONNX Runtime computes it with exact sums here.
    """
    graph = ExactSums(graph, host_target().exact_weights, path.parent).run()
    model = model_of(with_files(graph, path.with_suffix(".data")), path.parent, path.stem)
    path.write_bytes(model.SerializeToString())
    return path


def write_optimised(path: Path) -> Path:
    """Write what ONNX Runtime makes of the model ``path`` next to it, as ``write_graph`` does.

    Raises:
        OnnxError: it refuses the model.
    """
    # Files of passes, which may lie there, have other names.
    source, result, written = (
        path.with_name(f"{path.stem}-{name}.onnx") for name in ("source", "result", "optimised")
    )
    level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    graph = optimised(graph_at(path), source, result, level, path)
    return write_graph(graph, written)
