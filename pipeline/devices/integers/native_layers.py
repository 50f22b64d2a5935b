"""Quantised layers of packs on the native library: which it takes, their memory, their kernels."""

import functools
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from models.images.picture_rows import RowSource
from models.network.operators.quantised import Quantised, QuantisedAverage, QuantisedTask
from pipeline.devices.elementwise.library import Library
from pipeline.devices.elementwise.operator_node import JOB_BYTES, Bind, JobSession
from pipeline.devices.integers.tasks import (
    Places,
    TaskStruct,
    constant_bytes,
    constants_in,
    place,
    placed_average,
    point,
    unplaced,
)
from pipeline.program.kernels import IntegerTask
from pipeline.program.prepare import IntegerChoice

# The memory that a quantised task takes while it runs, and the parts, groups and rows that fit into it.

_FLOAT_BYTES = 4
# Nanoseconds to hand parts to other threads and wait for them.
_SHARING = 10_000
# Fewer are made sooner than others have begun.
_ROWS_A_PART = 4
# A layer alone makes no row twice: fewer rows at a time cost it launches alone.
_STRIP_ROWS = 8
# Bytes that all parts of a task may take at least, and each of them; what part of its tensors they are
# beyond that. With 23.25 KiB patchnet's networks for 64 KiB take 58,944 bytes.
_LEAST_BYTES, _PART_BYTES, _PART_OF_TENSORS = 93 << 8, 93 << 7, 2


def _workspace_bytes(found: QuantisedTask) -> int:
    """Return about how many bytes a task may take: little beside what it reads and makes."""
    first, made = found.layers[0], math.prod(found.result.shape)
    read = math.prod(first.windows.size) * first.channels
    if found.rectangle is not None:
        read = 0
    return max(_LEAST_BYTES, (read + made) // _PART_OF_TENSORS)


def fitted(found: QuantisedTask, library: Library, threads: int, workspace: int) -> TaskStruct:
    """Return ``found`` without addresses, with parts, groups and rows for about ``workspace`` bytes.

    Parts of a bottleneck share their sums: there are places for all of them whether they are worth it, so
    that what is taken does not depend on how much there is to compute. One of a dense layer may have all.
    """
    # Of a rectangle of an image rows take the rest.
    own = workspace if found.rectangle is None else workspace // 2
    most = min(threads, max(workspace // _PART_BYTES, 1))
    tasks = []
    for parts in {most} if found.depthwise >= 0 else {1, most}:
        task = unplaced(found, parts)
        library.fit_task(task, own)
        tasks.append(task)
    task = min(tasks, key=_nanoseconds)
    if float(task.cost) < _nanoseconds(task):
        task.n_parts = 1
    return task


def _nanoseconds(task: TaskStruct) -> float:
    """Return about what a task takes, ns."""
    return float(task.cost) / int(task.n_parts) + _SHARING * int(task.n_parts > 1)


def taken_bytes(found: QuantisedTask, task: TaskStruct, workspace: int, by_rows: bool) -> int:
    """Return what ``task``, as ``fitted``, allocates while it runs: of its own, and for a request's rows.

    Of a bottleneck at least ``workspace``, most of which it takes: so what it takes does not depend on how
    many inner channels it has.
    """
    own = int(task.n_bytes)
    if by_rows and found.rectangle is not None:
        _, n_rows = _strip_rows(found, task, workspace)
        own += n_rows * _line_bytes(found)
    return max(own, workspace if len(found.layers) > 1 else 0)


def _strip_rows(found: QuantisedTask, task: TaskStruct, workspace: int) -> tuple[int, int]:
    """Return how many rows of the result are made of rows of a request at a time, and of how many.

    These take half of the workspace, or of the least what ``task`` leaves; for a layer alone no more than
    all of its parts need.
    """
    room = max(workspace // 2, _LEAST_BYTES - int(task.n_bytes)) // _line_bytes(found)
    most = found.result.shape[1]
    if len(found.layers) == 1:
        rows = max(_ROWS_A_PART * int(task.n_parts), _STRIP_ROWS)
        most = min(most, rows if found.pool is None else max(rows // found.pool.strides[0], 1))
    counts = range(1, most + 1)
    rows = max(bisect_right(counts, room, key=found.most_given_rows), 1)
    return rows, found.most_given_rows(rows)


def _line_bytes(found: QuantisedTask) -> int:
    """Return what a row of the rectangle takes, of all planes."""
    first = found.layers[0]
    return _FLOAT_BYTES * first.channels * first.windows.size[1]


def _strip_parts(rows: int, parts: int) -> int:
    """Return how many parts of a task run at once on a strip, of which ``rows`` rows are made."""
    return parts if rows >= _ROWS_A_PART * parts else 1


# What a bound piece takes instead of a session beside its constants: its task, and what Python has around
# it, most of it blocks too small for the heap's own count. Measured 2.0 and 2.3 KB a piece, all counted.
_TASK_BYTES = 2560


# Quantised pieces bound to memory: what runs them, on tensors or on the rows that a request gives.

#: Runs a task, whose parts may run at once; raises KernelError.
RunTask = Callable[[TaskStruct], None]


class RowsOfRequest(RowSource, Protocol):
    """What a request gave, whose rows are taken from it; ``whole``: None where it makes them."""

    def whole(self) -> NDArray[Any] | None: ...


class BoundTask:
    """Runs a task; ``held``: constants that it points to, and that nothing else keeps alive."""

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
    return _ByRows(found, _strip_rows(found, bound.task, workspace), bound, source)


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
        task.n_parts = _strip_parts(self._rows, self._parts)
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


# Quantised layers of packs on the native library: what a device has for them.

#: Grows when the same layers take another time: profiles of before hold no longer.
KERNELS_VERSION = 3


class QuantisedLayers:
    """Quantised pieces with ``threads`` threads, several of ONNX Runtime by ``bind``."""

    def __init__(self, library: Library, threads: int, bind: Bind | None = None) -> None:
        self._library = library
        self._threads = threads
        self._bind = bind

    @property
    def kernels(self) -> str:
        """What distinguishes these kernels from others that take another time."""
        return f"{self._library.processor} {KERNELS_VERSION}"

    def tasks(self, tasks: Mapping[int, Quantised]) -> IntegerChoice:
        """Return how each of the ``tasks`` of a network, by number, runs here."""
        # All tasks share the scratch: its size is the largest that one of them uses.
        found = (each for each in tasks.values() if isinstance(each, QuantisedTask))
        workspace = max(map(_workspace_bytes, found), default=0)
        return functools.cache(partial(self._kernel, tasks, workspace))

    def _kernel(
        self,
        tasks: Mapping[int, Quantised],
        workspace: int,
        index: int,
        graph: int,
        n_inputs: int,
        by_rows: bool,
    ) -> tuple[IntegerTask, int]:
        """Return the kernel of task ``index``, and what it allocates while it runs."""
        found = tasks[index]
        bound_bytes = _TASK_BYTES + constant_bytes(found, n_inputs)
        kernel = partial(IntegerTask, task=index, graph=graph, bound_bytes=bound_bytes)
        if not isinstance(found, QuantisedTask):
            return kernel(workspace_bytes=0, together_bytes=0), 0
        task = fitted(found, self._library, self._threads, workspace)
        shared_bytes = JOB_BYTES if self._bind is not None and task.n_parts > 1 else 0
        return (
            kernel(workspace_bytes=workspace, together_bytes=shared_bytes),
            taken_bytes(found, task, workspace, by_rows),
        )

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
        workspace: int,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
    ) -> Callable[[], None]:
        """Return what runs ``found``, with constants in ``graph``, on memory, in ``workspace`` bytes.

        An input that a request holds has ``put_rows`` instead of being an array.
        """
        kept_alive, constants = constants_in(graph, found, len(inputs))
        addresses = (each.ctypes.data if isinstance(each, np.ndarray) else 0 for each in inputs)
        places, output = (*addresses, *constants), outputs[0].ctypes.data
        # The caller keeps the rest as long as what is returned.
        if isinstance(found, QuantisedAverage):
            return bind_average(found, places, output, kept_alive, self._library)
        task = fitted(found, self._library, self._threads, workspace)
        if task.n_parts > 1 and self._jobs is not None:
            self._jobs.prepare()
        bound = BoundTask(task, self._run_task, kept_alive)
        source = inputs[found.source]
        return bind_task(found, source, places, output, bound, workspace)

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
