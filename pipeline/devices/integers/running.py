"""Who computes quantised tasks: the library's threads, or ONNX Runtime's where these spin."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pipeline.devices.elementwise.library import Library
from pipeline.devices.elementwise.messages import model, node
from pipeline.devices.elementwise.operator_node import DOMAIN, VERSION
from pipeline.devices.integers.structures import Task

#: A model with the one operator that does what its thread was handed (kernels/custom_operator.c).
JOB = model([node("Job", DOMAIN, ["x"], ["y"])], [("x", (1,))], [("y", (1,))], [(DOMAIN, VERSION)])
#: What its session and its binding take of the heap. Measured 27 KB.
JOB_BYTES = 36 << 10

#: Loads a model and binds it to inputs and outputs; what is returned raises KernelError.
Bind = Callable[[bytes, Sequence[Any], Sequence[Any]], Callable[[], None]]


class TaskRunner:
    """Runs the tasks of one model, one at a time: those in parts by ``bind``, where it is given.

    A model has one of its own, since a binding is for one sweep at a time.
    """

    def __init__(self, library: Library, bind: Bind | None = None) -> None:
        self._library = library
        self._bind = bind
        self._ports = np.zeros((2, 1), np.float32)  # the binding has their addresses only
        self._job: Callable[[], None] | None = None

    def prepare(self, task: Task) -> None:
        """Load what ``task`` needs to run: when it is bound, so that no first request takes memory."""
        if task.n_parts > 1 and self._bind is not None and self._job is None:
            given, made = self._ports
            self._job = self._bind(JOB, [given], [made])

    def run(self, task: Task) -> None:
        """Run ``task``, which was prepared.

        Raises:
            MemoryError: there is not what its parts take. KernelError: ONNX Runtime fails.
        """
        if task.n_parts > 1 and self._job is not None:
            self._library.hand_over(task)
            try:
                self._job()
            finally:
                self._library.hand_over(None)
            short = bool(task.failed)
        else:
            short = not self._library.run_task(task)
        if short:
            raise MemoryError(f"no memory for {task.n_parts} times {task.n_bytes} bytes")
