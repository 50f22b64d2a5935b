"""Quantised pieces bound to memory: what runs them, on tensors or on the rows that a request gives."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from models.images.picture_rows import RowSource
from models.network.operators.quantised import QuantisedAverage, QuantisedTask
from pipeline.devices.elementwise.library import Library
from pipeline.devices.integers.structures import TaskStruct
from pipeline.devices.integers.tasks import Places, place, placed_average, point
from pipeline.devices.integers.workspace import strip_parts, strip_rows

#: Runs a task, whose parts may run at once; raises KernelError.
RunTask = Callable[[TaskStruct], None]


class RowsOfRequest(RowSource, Protocol):
    """What a request gave, whose rows are taken from it; ``whole``: None where it makes them."""

    def whole(self) -> NDArray[Any] | None: ...


class BoundTask:
    """Runs a task; ``held``: constants that it points to, and that nobody else keeps."""

    __slots__ = ("_held", "_run", "task")

    def __init__(self, task: TaskStruct, run: RunTask, held: object) -> None:
        self.task = task
        self._run = run
        self._held = held

    def __call__(self) -> None:
        self._run(self.task)

    def settle(self) -> None:
        """Let go of what ctypes keeps of all that was written into the task: six times its size."""
        self.task = TaskStruct.from_buffer_copy(self.task)


def bind_average(
    found: QuantisedAverage, places: Places, made: int, held: object, library: Library
) -> Callable[[], None]:
    """Return what runs ``found`` on ``places`` to ``made``; it keeps what is ``held``."""
    return library.bind_average(placed_average(found, places, made), held)


def bind_task(
    found: QuantisedTask,
    source: Any,
    places: Places,
    made: int,
    bound: BoundTask,
    workspace: int,
) -> Callable[[], None]:
    """Return what runs ``found`` on ``places`` to ``made``; ``source``: an array, or what has ``put_rows``.

    ``bound``: its task from ``fitted``, with ``workspace``, which gets its addresses.
    """
    place(bound.task, found, places, made)
    bound.settle()
    if isinstance(source, np.ndarray):
        point(bound.task, found, source)
        return bound
    assert found.rectangle is not None, "only images are taken by rows"
    return _ByRows(found, strip_rows(found, bound.task, workspace), bound, source)


class _ByRows:
    """Runs a task on rows that a request gives, some at a time; each row is asked for once."""

    def __init__(
        self,
        found: QuantisedTask,
        rows: tuple[int, int],
        bound: BoundTask,
        source: RowsOfRequest,
    ) -> None:
        self._found = found
        self._task = bound.task
        self._parts = int(bound.task.n_parts)
        self._source = source
        self._run = bound
        self._rows, self._most = rows

    def __call__(self) -> None:
        whole = self._source.whole()
        if whole is None or not whole.flags.c_contiguous:
            self._strip_by_strip()
            return
        self._task.n_parts = self._parts
        point(self._task, self._found, whole)
        self._task.first_row, self._task.end_row = 0, self._found.result.shape[1]
        self._run()

    def _strip_by_strip(self) -> None:
        assert self._found.rectangle is not None
        first_layer, column = self._found.layers[0], self._found.rectangle.first_column
        width = first_layer.windows.size[1]
        strip = np.empty((first_layer.channels, self._most, width), np.float32)
        task, last, have = self._task, self._found.result.shape[1], (0, 0)
        task.n_parts = strip_parts(self._rows, self._parts)
        for first in range(0, last, self._rows):
            end = min(first + self._rows, last)
            wanted = self._found.given_rows(first, end)
            kept = max(have[1] - wanted[0], 0) if have[0] <= wanted[0] else 0
            # One by one, since none lies over the next one: all at once would be copied.
            for row in range(kept):
                strip[:, row] = strip[:, wanted[0] - have[0] + row]
            if wanted[0] + kept < wanted[1]:
                rows = strip[:, kept : wanted[1] - wanted[0]]
                self._source.put_rows(rows, 0, wanted[0] + kept, column)
            have = wanted
            point(task, self._found, strip[None], wanted[0], column)
            task.first_row, task.end_row = first, end
            self._run()
