"""The one decision which pieces of a pack the native library computes, and what they take there.

What each piece computes the compiler has said (``Piece.quantised``). Invariant: ``Piece.native`` is what
plans count and what binding does.
"""

from dataclasses import replace

from models.network.operators.quantised import Quantised, QuantisedTask
from models.packs.manifest import Manifest
from models.packs.pack import Pack
from models.packs.records.decided import Native
from models.packs.records.pieces import Operand, Piece
from pipeline.devices.elementwise.job_session import JOB_BYTES
from pipeline.devices.elementwise.library import Library
from pipeline.devices.integers.tasks import constant_bytes
from pipeline.devices.integers.workspace import fitted, taken_bytes, workspace_bytes
from pipeline.program.values.shared_memory import roots

# What a bound piece takes instead of a session beside its constants: its task, and what Python has around
# it, most of it blocks too small for the heap's own count. Measured 2.0 and 2.3 KB a piece, all counted.
_TASK_BYTES = 2560


class Decision:
    """Decides about ``pack``: ``threads`` compute, of ONNX Runtime where there ``are_jobs``."""

    def __init__(self, pack: Pack, library: Library, threads: int, are_jobs: bool) -> None:
        self._manifest = pack.manifest
        self._library = library
        self._threads = threads
        self._are_jobs = are_jobs
        self._roots = roots(pack.manifest)
        self._inputs = {(port.value, port.dtype, port.shape) for port in pack.manifest.inputs}
        self._found = [self._task(piece) for piece in pack.manifest.pieces]
        # Scratch is what any of them takes: all may have what one had better have.
        tasks = (each for each in self._found if isinstance(each, QuantisedTask))
        self._workspace = max(map(workspace_bytes, tasks), default=0)
        # By number of the task, of inputs, and whether these are taken by rows.
        self._natives: dict[tuple[int | None, int, bool], tuple[int, Native]] = {}

    def manifest(self) -> Manifest:
        """Return the manifest with what was decided of each piece."""
        pieces = tuple(map(self._decided, self._manifest.pieces, self._found))
        return self._manifest.model_copy(update={"pieces": pieces})

    def _task(self, piece: Piece) -> Quantised | None:
        """Return what the library computes; None: a session does."""
        if piece.quantised is None:
            return None
        found = self._manifest.quantised[piece.quantised]
        (made,) = map(self._place, piece.outputs)
        read = (
            self._place(operand)
            for number, operand in enumerate(piece.inputs)
            if operand.kind == "value"
            and not (number == found.over and self._place(operand) == made)
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
        return root, start, start + operand.n_bytes

    def _decided(self, piece: Piece, found: Quantised | None) -> Piece:
        """Return ``piece`` as it runs."""
        if found is None:
            return piece
        by_rows = (
            isinstance(found, QuantisedTask)
            and found.rectangle is not None
            and self._is_whole(piece.inputs[0])
        )
        key = (piece.quantised, len(piece.inputs), by_rows)
        if key not in self._natives:
            self._natives[key] = self._native(found, len(piece.inputs), by_rows)
        scratch, native = self._natives[key]
        return replace(piece, scratch_bytes=scratch, unrolled=None, native=native)

    def _native(self, found: Quantised, n_inputs: int, by_rows: bool) -> tuple[int, Native]:
        """Return what ``found`` allocates while it runs, and the rest that is decided of it."""
        bound = _TASK_BYTES + constant_bytes(found, n_inputs)
        if not isinstance(found, QuantisedTask):
            return 0, Native(bound_bytes=bound)
        task = fitted(found, self._library, self._threads, self._workspace)
        native = Native(
            by_rows=by_rows,
            workspace_bytes=self._workspace,
            bound_bytes=bound,
            together_bytes=JOB_BYTES if self._are_jobs and task.n_parts > 1 else 0,
        )
        return taken_bytes(found, task, self._workspace, by_rows), native

    def _is_whole(self, operand: Operand) -> bool:
        """Return whether ``operand`` is an input as a request gives it: all of it, in this form."""
        as_given = operand.index, operand.dtype, operand.shape
        return operand.kind == "value" and operand.offset == 0 and as_given in self._inputs
