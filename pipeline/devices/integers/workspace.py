"""The memory that a quantised task takes while it runs, and what it makes of it: parts, groups and rows."""

import math
from bisect import bisect_right

from models.network.operators.quantised import QuantisedTask
from pipeline.devices.elementwise.library import Library
from pipeline.devices.integers.structures import TaskStruct
from pipeline.devices.integers.tasks import unplaced

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


def workspace_bytes(found: QuantisedTask) -> int:
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
        _, given = strip_rows(found, task, workspace)
        own += given * _line_bytes(found)
    return max(own, workspace if len(found.layers) > 1 else 0)


def strip_rows(found: QuantisedTask, task: TaskStruct, workspace: int) -> tuple[int, int]:
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


def strip_parts(rows: int, parts: int) -> int:
    """Return how many parts of a task run at once on a strip, of which ``rows`` rows are made."""
    return parts if rows >= _ROWS_A_PART * parts else 1
