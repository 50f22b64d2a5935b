"""The one decision which pieces of a pack the native library computes, and what they take there.

Invariant: ``Piece.native`` is what plans count and what binding does, for the finest pieces and for those
that they are joined to. Nothing looks again.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from models.errors import PackError
from models.packs.choice import joined_pieces
from models.packs.manifest import Manifest
from models.packs.pack import Pack
from models.packs.records.decided import Native
from models.packs.records.pieces import Alternative, Joined, Operand, Piece
from pipeline.devices.elementwise.job_session import JOB_BYTES
from pipeline.devices.elementwise.library import Library
from pipeline.devices.integers.constants import constant_bytes
from pipeline.devices.integers.layers import QuantisedTask
from pipeline.devices.integers.nodes import MisfitError
from pipeline.devices.integers.pieces import read_graph
from pipeline.devices.integers.recognising import Recognised, recognised
from pipeline.devices.integers.workspace import fitted, taken_bytes, workspace_bytes
from pipeline.program.values.shared_memory import roots

# What a bound piece takes instead of a session beside its constants: its task, and what Python has around
# it, most of it blocks too small for the heap's own count. Measured 2.0 and 2.3 KB a piece, all counted.
_TASK_BYTES = 2560

_Decided = TypeVar("_Decided", Piece, Joined)


class Decision:
    """Decides about ``pack``: ``threads`` compute, of ONNX Runtime where there ``are_jobs``.

    Raises:
        PackError: tensors of a quantised layer do not fit each other.
    """

    def __init__(self, pack: Pack, library: Library, threads: int, are_jobs: bool) -> None:
        self._pack = pack
        self._library = library
        self._threads = threads
        self._are_jobs = are_jobs
        manifest = pack.manifest
        self._roots = roots(manifest)
        self._constant_bytes: dict[int, int] = {}  # by number of graph
        self._inputs = {(port.value, port.dtype, port.shape) for port in manifest.inputs}
        self._finest = [
            self._found(piece, f"pieces.{number}") for number, piece in enumerate(manifest.pieces)
        ]
        self._joined = [
            [
                self._found(piece, f"alternatives.{number}.joined.{at}")
                for at, piece in enumerate(joined_pieces(manifest, each))
            ]
            for number, each in enumerate(manifest.alternatives)
        ]
        # Scratch is what any of them takes: all may have what one had better have.
        found = (*self._finest, *(each for joined in self._joined for each in joined))
        tasks = (each for each in found if isinstance(each, QuantisedTask))
        self._workspace = max(map(workspace_bytes, tasks), default=0)

    def manifest(self) -> Manifest:
        """Return the manifest with what was decided of each piece, finest or joined."""
        manifest = self._pack.manifest
        pieces = tuple(map(self._decided, manifest.pieces, manifest.pieces, self._finest))
        alternatives = tuple(map(self._alternative, manifest.alternatives, self._joined))
        return manifest.model_copy(update={"pieces": pieces, "alternatives": alternatives})

    def _found(self, piece: Piece, where: str) -> Recognised | None:
        """Return what the library computes; None: a session does."""
        if piece.resident is not None:
            return None
        graph = self._pack.graphs[piece.graph]
        try:
            found = recognised(graph, piece)
        except MisfitError as exc:
            file = self._pack.folder / "manifest.json"
            raise PackError(f"{file}: {where}: {exc}") from exc
        if found is None:
            return None
        over = found.over if isinstance(found, QuantisedTask) else None
        inputs = zip(read_graph(graph).inputs, piece.inputs, strict=True)
        (made,) = map(self._place, piece.outputs)
        read = (
            self._place(operand)
            for name, operand in inputs
            if operand.kind == "value" and not (name == over and self._place(operand) == made)
        )
        # Rows are read again.
        over_another = any(
            made[0] == other[0] and made[1] < other[2] and other[1] < made[2] for other in read
        )
        return None if over_another else found

    def _place(self, operand: Operand) -> tuple[int, int, int]:
        """Return the value whose memory an operand lies in, its first byte there, and its end."""
        root, offset = self._roots[operand.index]
        start = offset + operand.offset
        return root, start, start + (0 if operand.is_loose else operand.n_bytes)

    def _alternative(self, given: Alternative, found: Sequence[Recognised | None]) -> Alternative:
        whole = joined_pieces(self._pack.manifest, given)
        return replace(given, joined=tuple(map(self._decided, given.joined, whole, found)))

    def _decided(self, item: _Decided, piece: Piece, found: Recognised | None) -> _Decided:
        """Return ``item`` as it runs: ``piece`` is what it is of."""
        if found is None:
            # That of a joined piece was told beside its chunks', which may be native now.
            same = item.scratch_bytes == piece.scratch_bytes
            return item if same else replace(item, scratch_bytes=piece.scratch_bytes)
        bound = _TASK_BYTES + self._constants(piece.graph)
        if not isinstance(found, QuantisedTask):
            return replace(item, scratch_bytes=0, unrolled=None, native=Native(bound_bytes=bound))
        by_rows = found.rectangle is not None and self._is_whole(piece.inputs[0])
        task = fitted(found, self._library, self._threads, self._workspace)
        native = Native(
            by_rows=by_rows,
            workspace_bytes=self._workspace,
            bound_bytes=bound,
            together_bytes=JOB_BYTES if self._are_jobs and task.n_parts > 1 else 0,
        )
        scratch = taken_bytes(found, task, self._workspace, by_rows)
        return replace(item, scratch_bytes=scratch, unrolled=None, native=native)

    def _constants(self, graph: int) -> int:
        """Return what the constants of a graph take in memory."""
        if graph not in self._constant_bytes:
            tensors = read_graph(self._pack.graphs[graph]).tensors
            self._constant_bytes[graph] = constant_bytes(tensors)
        return self._constant_bytes[graph]

    def _is_whole(self, operand: Operand) -> bool:
        """Return whether ``operand`` is an input as a request gives it: all of it, in this form."""
        as_given = operand.index, operand.dtype, operand.shape
        return operand.kind == "value" and operand.offset == 0 and as_given in self._inputs
