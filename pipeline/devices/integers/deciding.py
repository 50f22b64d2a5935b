"""What the native library takes for the quantised layers of one network."""

from collections.abc import Sequence

from models.network.operators.quantised import Quantised, QuantisedTask
from pipeline.devices.elementwise.job_session import JOB_BYTES
from pipeline.devices.elementwise.library import Library
from pipeline.devices.integers.tasks import constant_bytes
from pipeline.devices.integers.workspace import fitted, taken_bytes, workspace_bytes
from pipeline.program.decided import Native

# What a bound piece takes instead of a session beside its constants: its task, and what Python has around
# it, most of it blocks too small for the heap's own count. Measured 2.0 and 2.3 KB a piece, all counted.
_TASK_BYTES = 2560


class Decision:
    """Decides about layers of which ``found`` are all: ``threads`` compute, of ONNX Runtime or its own.

    ``are_jobs``: those of ONNX Runtime do.
    """

    def __init__(
        self, found: Sequence[Quantised], library: Library, threads: int, are_jobs: bool
    ) -> None:
        self._library = library
        self._threads = threads
        self._are_jobs = are_jobs
        # Scratch is what any of them takes: all may have what one had better have.
        tasks = (each for each in found if isinstance(each, QuantisedTask))
        self._workspace = max(map(workspace_bytes, tasks), default=0)

    def native(self, found: Quantised, n_inputs: int, by_rows: bool) -> tuple[int, Native]:
        """Return what ``found`` allocates while it runs, and the rest that is decided of it.

        ``by_rows``: its first input is one as a request gives it.
        """
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
