"""Quantised pieces of packs on the native library, and the memory that they take there."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from models.packs.pack import Pack
from models.packs.records.pieces import GraphRange, Operand, Piece
from pipeline.devices.elementwise.library import Library
from pipeline.devices.elementwise.messages import model, node
from pipeline.devices.elementwise.operator_node import DOMAIN, VERSION
from pipeline.devices.elementwise.pieces import PieceError, read_graph
from pipeline.devices.integers.binding import (
    Places,
    bind_average,
    bind_task,
    fitted,
    strip_bytes,
    strip_parts,
    strip_rows,
    workspace_bytes,
)
from pipeline.devices.integers.layers import QuantisedAverage, QuantisedTask
from pipeline.devices.integers.recognising import Recognised, may_be_quantised, recognised
from pipeline.devices.integers.structures import Task

#: Grows when the same layers take another time: profiles of before hold no longer.
KERNELS_VERSION = 1
#: What a piece takes instead of a session: its task, and Python's objects around it. Measured 3 KB.
TASK_BYTES = 4 << 10
#: A model with the one operator that does what its thread was handed (kernels/custom_operator.c).
JOB = model([node("Job", DOMAIN, ["x"], ["y"])], [("x", (1,))], [("y", (1,))], [(DOMAIN, VERSION)])

#: Of inputs of a model: value, element type and shape.
Inputs = Collection[tuple[int, str, tuple[int, ...]]]
#: Runs the operator `Job`; raises KernelError.
RunJob = Callable[[], None]


def is_quantised(pack: Pack) -> bool:
    """Return whether ``pack`` may have pieces that are computed here."""
    return any(map(may_be_quantised, pack.graphs))


class QuantisedLayers:
    """Quantised pieces with ``threads`` threads: those of ``run_job``, else of ``library``."""

    def __init__(self, library: Library, threads: int, run_job: RunJob | None = None) -> None:
        self._library = library
        self._threads = threads
        self._run_job = run_job

    @property
    def kernels(self) -> str:
        """What tells these kernels from others that take another time."""
        return f"{self._library.processor} {KERNELS_VERSION}"

    def runs(self, graph: bytes, piece: Piece) -> bool:
        """Return whether ``piece``, whose serialised graph is ``graph``, is computed here."""
        return recognised(graph, piece) is not None

    def bind(
        self, graph: bytes, piece: Piece, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> Callable[[], None] | None:
        """Return what runs ``piece`` on memory; None: it is not computed here.

        An input that a request holds has ``put_rows`` instead of being an array.
        """
        found = recognised(graph, piece)
        if found is None:
            return None
        places = _places(graph, inputs, outputs)
        if not _apart(places, found.result):
            return None
        if isinstance(found, QuantisedAverage):
            return bind_average(found, places, self._library)
        workspace = piece.workspace_bytes or workspace_bytes(found)
        task = fitted(found, self._library, self._threads, workspace)
        return bind_task(found, places, task, workspace, self._run)

    def fitted(self, pack: Pack) -> Pack:
        """Return ``pack`` with what its quantised pieces take here, and which of them read by rows."""
        manifest = pack.manifest
        if manifest.target.capability is not None:
            return pack  # what a GPU does not run has sessions
        inputs = {(port.value, port.dtype, port.shape) for port in manifest.inputs}
        known = [
            None if piece.resident else recognised(pack.graphs[piece.graph], piece)
            for piece in manifest.pieces
        ]
        # Scratch is what any of them takes: all may have what one had better have.
        tasks = [each for each in known if isinstance(each, QuantisedTask)]
        workspace = max(map(workspace_bytes, tasks), default=0)
        pieces = tuple(
            piece if found is None else self._fitted(piece, found, inputs, workspace)
            for piece, found in zip(manifest.pieces, known, strict=True)
        )
        others = {
            piece.graph
            for piece, found in zip(manifest.pieces, known, strict=True)
            if found is None
        }
        native = {piece.graph for piece in manifest.pieces} - others
        graphs = tuple(
            _without_session(graph) if number in native else graph
            for number, graph in enumerate(manifest.graphs)
        )
        update = {"pieces": pieces, "graphs": graphs}
        return replace(pack, manifest=pack.manifest.model_copy(update=update))

    def _fitted(self, piece: Piece, found: Recognised, inputs: Inputs, workspace: int) -> Piece:
        if isinstance(found, QuantisedAverage):
            return replace(piece, scratch_bytes=0, unrolled=None)
        by_rows = found.rectangle is not None and _is_whole(piece.inputs[0], inputs)
        scratch = self._scratch_bytes(found, by_rows, workspace)
        return replace(
            piece, scratch_bytes=scratch, unrolled=None, by_rows=by_rows, workspace_bytes=workspace
        )

    def _scratch_bytes(self, found: QuantisedTask, by_rows: bool, workspace: int) -> int:
        """Return what a task allocates while it runs: memory of its parts, and rows of a request."""
        task = fitted(found, self._library, self._threads, workspace)
        each, parts = int(task.n_bytes), int(task.n_parts)
        whole = parts * each
        if not by_rows or found.rectangle is None:
            return whole
        rows, _ = strip_rows(found, found.rectangle, workspace)
        return max(whole, strip_parts(rows, parts) * each + strip_bytes(found, workspace))

    def _run(self, task: Task) -> None:
        if task.n_parts > 1 and self._run_job is not None:
            self._library.hand_over(task)
            try:
                self._run_job()
            finally:
                self._library.hand_over(None)
            short = bool(task.failed)
        else:
            short = not self._library.run_task(task)
        if short:
            raise MemoryError(f"no memory for {task.n_parts} times {task.n_bytes} bytes")


def _is_whole(operand: Operand, inputs: Inputs) -> bool:
    """Return whether ``operand`` is one of ``inputs`` as a request gives it: all of it, in this form."""
    as_given = operand.index, operand.dtype, operand.shape
    return operand.kind == "value" and operand.offset == 0 and as_given in inputs


def _without_session(graph: GraphRange) -> GraphRange:
    return replace(graph, session_bytes=TASK_BYTES)


def _apart(places: Places, result: str) -> bool:
    """Return whether what is made lies over nothing that is read: rows are read again."""
    made = places[result]
    others = (held for name, held in places.items() if name != result)
    return not any(
        np.may_share_memory(made, each) for each in others if isinstance(each, np.ndarray)
    )


def _places(graph: bytes, inputs: Sequence[Any], outputs: Sequence[Any]) -> Places:
    """Return where what the nodes of ``graph`` name lies; its constants are held by the result."""
    try:
        read = read_graph(graph)
    except PieceError:  # it was read before
        return {}
    ports: Mapping[str, Any] = {
        **dict(zip(read.inputs, inputs, strict=True)),
        **dict(zip(read.outputs, outputs, strict=True)),
    }
    return {**read.tensors, **ports}
