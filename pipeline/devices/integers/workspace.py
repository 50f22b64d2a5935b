"""The memory that a quantised task takes while it runs, and what it makes of it: parts, groups and rows."""

from bisect import bisect_right

from pipeline.devices.elementwise.library import Library
from pipeline.devices.integers.layers import QuantisedTask, Rectangle
from pipeline.devices.integers.structures import Task
from pipeline.devices.integers.tasks import unplaced

_FLOAT_BYTES = 4
#: Multiplications of a task from which on several threads are worth it.
WORTH_SHARING = 1 << 20
# Nanoseconds to hand parts to other threads and wait for them.
_SHARING = 10_000
# Fewer are made sooner than others have begun.
_ROWS_A_PART = 4
# Bytes of each part of a task at least; those of all parts whatever it makes, and what part of its tensors
# beyond that.
_PART_BYTES, _LEAST_BYTES, _PART_OF_TENSORS = 12 << 10, 24 << 10, 2


def workspace_bytes(found: QuantisedTask) -> int:
    """Return about how many bytes a task may take: little beside what it reads and makes."""
    first, last = found.layers[0], found.layers[-1]
    read = first.rows.given * first.columns.given * first.channels
    made = last.rows.made * last.columns.made * last.filters
    if found.rectangle is not None:
        read = 0
    return max(_LEAST_BYTES, (read + made) // _PART_OF_TENSORS)


def fitted(found: QuantisedTask, library: Library, threads: int, workspace: int) -> Task:
    """Return ``found`` without addresses, with parts, groups and rows for about ``workspace`` bytes.

    Fewer parts than threads are faster where each has room for more rows.
    """
    workspace = _beside_strip(found, workspace)
    most = min(threads, max(workspace // _PART_BYTES, 1))
    counts = {1, most} if sum(layer.macs for layer in found.layers) >= WORTH_SHARING else {1}
    tasks = []
    for parts in sorted(counts, reverse=True):
        task = unplaced(found, parts)
        library.fit_task(task, workspace // parts)
        tasks.append(task)
    return min(tasks, key=_nanoseconds)


def _beside_strip(found: QuantisedTask, workspace: int) -> int:
    """Return how much of its workspace a task has itself: half, where the rest holds rows of an image."""
    return workspace if found.rectangle is None else workspace // 2


def _nanoseconds(task: Task) -> float:
    """Return about what a task takes, ns; of a bottleneck the part with most rows ends last."""
    rows, parts = int(task.end_row), int(task.n_parts)
    alone = 1 / parts if task.depthwise < 0 else -(-rows // parts) / rows
    return float(task.cost) * alone + _SHARING * (parts > 1)


def taken_bytes(found: QuantisedTask, task: Task, workspace: int, by_rows: bool) -> int:
    """Return what ``task``, as ``fitted``, allocates while it runs: for its parts and a request's rows.

    Of a bottleneck at least ``workspace``, most of which it takes: so what it takes does not depend on how
    many inner channels it has.
    """
    each, parts = int(task.n_bytes), int(task.n_parts)
    whole = max(parts * each, workspace if len(found.layers) > 1 else 0)
    if not by_rows or found.rectangle is None:
        return whole
    rows, _ = strip_rows(found, found.rectangle, workspace)
    return max(whole, strip_parts(rows, parts) * each + strip_bytes(found, workspace))


def strip_rows(found: QuantisedTask, rectangle: Rectangle, workspace: int) -> tuple[int, int]:
    """Return how many rows of the result are made of rows of a request at a time, and of how many."""
    line = _line_bytes(found, rectangle)
    counts = range(1, found.layers[-1].rows.made + 1)
    room = workspace // 2 // line
    rows = max(bisect_right(counts, room, key=found.most_given_rows), 1)
    return rows, found.most_given_rows(rows)


def strip_bytes(found: QuantisedTask, workspace: int) -> int:
    """Return what rows of a request take."""
    if found.rectangle is None:
        return 0
    _, most = strip_rows(found, found.rectangle, workspace)
    return _line_bytes(found, found.rectangle) * most


def _line_bytes(found: QuantisedTask, rectangle: Rectangle) -> int:
    """Return what a row of the rectangle takes, of all planes."""
    return _FLOAT_BYTES * rectangle.planes[1] * found.layers[0].columns.given


def strip_parts(rows: int, parts: int) -> int:
    """Return how many parts of a task run at once on a strip, of which ``rows`` rows are made."""
    return parts if rows >= _ROWS_A_PART * parts else 1
