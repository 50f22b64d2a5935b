"""Who computes quantised tasks: the library's threads, or ONNX Runtime's where these spin."""

from pipeline.devices.elementwise.job_session import Bind, JobSession
from pipeline.devices.elementwise.library import Library
from pipeline.devices.integers.structures import Task


class TaskRunner:
    """Runs the tasks of one model, one at a time: those in parts by ``bind``, where it is given."""

    def __init__(self, library: Library, bind: Bind | None = None) -> None:
        self._library = library
        self._jobs = None if bind is None else JobSession(bind)

    def prepare(self, task: Task) -> None:
        """Load what ``task`` needs to run."""
        if task.n_parts > 1 and self._jobs is not None:
            self._jobs.prepare()

    def run(self, task: Task) -> None:
        """Run ``task``, which was prepared.

        Raises:
            MemoryError: there is not what its parts take. KernelError: ONNX Runtime fails.
        """
        if task.n_parts > 1 and self._jobs is not None:
            self._jobs.run(self._library.hand_over, task)
            short = bool(task.failed)
        else:
            short = not self._library.run_task(task)
        if short:
            raise MemoryError(f"no memory for {task.n_bytes} bytes")
