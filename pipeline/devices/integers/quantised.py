"""Quantised layers of packs on the native library: what a device has for them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from models.network.operators.quantised import Quantised, QuantisedAverage
from pipeline.devices.elementwise.job_session import Bind, JobSession
from pipeline.devices.elementwise.library import Library
from pipeline.devices.integers.binding import BoundTask, bind_average, bind_task
from pipeline.devices.integers.deciding import Decision
from pipeline.devices.integers.structures import TaskStruct
from pipeline.devices.integers.tasks import constants_in
from pipeline.devices.integers.workspace import fitted
from pipeline.program.decided import Native

#: Grows when the same layers take another time: profiles of before hold no longer.
KERNELS_VERSION = 3


class QuantisedLayers:
    """Quantised pieces with ``threads`` threads: of ONNX Runtime by ``bind``, else those of ``library``."""

    def __init__(self, library: Library, threads: int, bind: Bind | None = None) -> None:
        self._library = library
        self._threads = threads
        self._bind = bind

    @property
    def kernels(self) -> str:
        """What tells these kernels from others that take another time."""
        return f"{self._library.processor} {KERNELS_VERSION}"

    def natives(self, found: Sequence[Quantised]) -> Decision:
        """Return what decides what the layers ``found`` of a network take here."""
        return Decision(found, self._library, self._threads, self._bind is not None)

    def of_model(self) -> "NativePieces":
        """Return what binds the native pieces of a model."""
        jobs = None if self._bind is None else JobSession(self._bind)
        return NativePieces(self._library, self._threads, jobs)


class NativePieces:
    """Binds native pieces of a model to memory, and runs them, one at a time; ``jobs``: those in parts."""

    def __init__(self, library: Library, threads: int, jobs: JobSession | None) -> None:
        self._library = library
        self._threads = threads
        self._jobs = jobs
        self._run_task = self._run

    def bind(
        self,
        found: Quantised,
        graph: bytes,
        native: Native,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
    ) -> Callable[[], None]:
        """Return what runs ``found`` on memory: a piece with constants in ``graph``, ``native`` as decided.

        An input that a request holds has ``put_rows`` instead of being an array.
        """
        held, constants = constants_in(graph, found, len(inputs))
        given = (each.ctypes.data if isinstance(each, np.ndarray) else 0 for each in inputs)
        places, made = (*given, *constants), outputs[0].ctypes.data
        # Who binds keeps the rest as long as what is returned.
        if isinstance(found, QuantisedAverage):
            return bind_average(found, places, made, held, self._library)
        task = fitted(found, self._library, self._threads, native.workspace_bytes)
        if task.n_parts > 1 and self._jobs is not None:
            self._jobs.prepare()
        bound = BoundTask(task, self._run_task, held)
        source = inputs[found.source]
        return bind_task(found, source, places, made, bound, native.workspace_bytes)

    def _run(self, task: TaskStruct) -> None:
        """Run ``task``, which is bound.

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
