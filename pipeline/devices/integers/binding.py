"""Quantised pieces bound to memory: structures of addresses, and what runs them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.devices.elementwise.library import Library
from pipeline.devices.integers.layers import (
    QuantisedAverage,
    QuantisedLayer,
    QuantisedTask,
    Rectangle,
    Scaling,
    Sum,
)
from pipeline.devices.integers.structures import Addition, Average, Layer, Picture, Scaled, Task

_FLIP = 0x80
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

#: Runs a task, whose parts may run at once; raises KernelError.
RunTask = Callable[[Task], None]
#: By name.
Places = Mapping[str, Any]


class RowsOfRequest(Protocol):
    """What a request gave, whose rows are taken from it; ``whole``: None where it makes them."""

    def put_rows(self, target: NDArray[Any], first_plane: int, first_row: int) -> None: ...

    def whole(self) -> NDArray[Any] | None: ...


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
        task = _unbound(found, parts)
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


def _unbound(found: QuantisedTask, parts: int) -> Task:
    last = found.layers[-1]
    task = Task(
        n_layers=len(found.layers),
        depthwise=found.depthwise,
        first_row=0,
        end_row=last.rows.made,
        n_parts=parts,
    )
    for at, layer in enumerate(found.layers):
        task.layers[at] = _layer(layer)
    if found.rectangle is not None:
        # Only whether there are planes counts before they are bound.
        task.picture = Picture(planes=1, made=_scaled(found.rectangle.made, {}))
    return task


def strip_rows(found: QuantisedTask, rectangle: Rectangle, workspace: int) -> tuple[int, int]:
    """Return how many rows of the result are made of rows of a request at a time, and of how many."""
    last = found.layers[-1].rows.made
    line = _FLOAT_BYTES * rectangle.planes[1] * rectangle.planes[3]
    rows, most = 1, _most_rows(found, 1)
    while rows < last and line * _most_rows(found, rows + 1) <= workspace // 2:
        rows += 1
        most = _most_rows(found, rows)
    return rows, most


def strip_bytes(found: QuantisedTask, workspace: int) -> int:
    """Return what rows of a request take, with those that are kept as they move."""
    if found.rectangle is None:
        return 0
    line = _FLOAT_BYTES * found.rectangle.planes[1] * found.rectangle.planes[3]
    rows, most = strip_rows(found, found.rectangle, workspace)
    return line * (most + max(most - rows, 0))


def strip_parts(rows: int, parts: int) -> int:
    """Return how many parts of a task run at once on a strip, of which ``rows`` rows are made."""
    return parts if rows >= _ROWS_A_PART * parts else 1


def _most_rows(found: QuantisedTask, rows: int) -> int:
    last = found.layers[-1].rows.made
    bands = (found.given_rows(at, min(at + rows, last)) for at in range(0, last, rows))
    return max(end - first for first, end in bands)


def bind_average(found: QuantisedAverage, places: Places, library: Library) -> Callable[[], None]:
    """Return what runs ``found`` on ``places``."""
    average = Average(
        given=places[found.source].ctypes.data,
        made=places[found.result].ctypes.data,
        source=_scaled(found.given, places),
        target=_scaled(found.made, places),
        channels=found.channels,
        pixels=found.pixels,
    )
    return library.bind_average(average, tuple(places.values()))


def bind_task(
    found: QuantisedTask, places: Places, task: Task, workspace: int, run: RunTask
) -> Callable[[], None]:
    """Return what runs ``found`` on ``places``: its source is an array, or has ``put_rows``.

    ``task``: from ``fitted``, with ``workspace``.
    """
    _place(task, found, places)
    source = places[found.source]
    if isinstance(source, np.ndarray):
        _point(task, found, source)
        return _Whole(task, run, tuple(places.values()))
    assert found.rectangle is not None, "only images are taken by rows"
    rows = strip_rows(found, found.rectangle, workspace)
    return _ByRows(found, rows, task, source, run, tuple(places.values()))


class _Whole:
    """Runs a task; ``held``: arrays that it points to."""

    __slots__ = ("_held", "_run", "_task")

    def __init__(self, task: Task, run: RunTask, held: Sequence[object]) -> None:
        self._task = task
        self._run = run
        self._held = held

    def __call__(self) -> None:
        self._run(self._task)


class _ByRows:
    """Runs a task on rows that a request gives, some at a time; each row is asked for once."""

    def __init__(
        self,
        found: QuantisedTask,
        rows: tuple[int, int],
        task: Task,
        source: RowsOfRequest,
        run: RunTask,
        held: Sequence[object],
    ) -> None:
        self._found = found
        self._task = task
        self._parts = int(task.n_parts)
        self._source = source
        self._run = run
        self._held = held
        self._rows, self._most = rows

    def __call__(self) -> None:
        whole = self._source.whole()
        if whole is None or not whole.flags.c_contiguous:
            self._strip_by_strip()
            return
        self._task.n_parts = self._parts
        _point(self._task, self._found, whole)
        self._task.first_row, self._task.end_row = 0, self._found.layers[-1].rows.made
        self._run(self._task)

    def _strip_by_strip(self) -> None:
        assert self._found.rectangle is not None
        _, planes, _, columns = self._found.rectangle.planes
        strip = np.empty((planes, self._most, columns), np.float32)
        task, last, have = self._task, self._found.layers[-1].rows.made, (0, 0)
        task.n_parts = strip_parts(self._rows, self._parts)
        for first in range(0, last, self._rows):
            end = min(first + self._rows, last)
            wanted = self._found.given_rows(first, end)
            kept = max(have[1] - wanted[0], 0) if have[0] <= wanted[0] else 0
            if kept:
                start = wanted[0] - have[0]
                strip[:, :kept] = strip[:, start : start + kept].copy()
            if wanted[0] + kept < wanted[1]:
                rows = strip[:, kept : wanted[1] - wanted[0]]
                self._source.put_rows(rows, 0, wanted[0] + kept)
            have = wanted
            _point(task, self._found, strip[None], wanted[0])
            task.first_row, task.end_row = first, end
            self._run(task)


def _point(task: Task, found: QuantisedTask, source: NDArray[Any], first_row: int = 0) -> None:
    """Have ``task`` read ``source``; of planes it has rows from ``first_row`` on."""
    if found.rectangle is None:
        task.given = source.ctypes.data
        return
    _, _, rows, columns = source.shape
    task.picture.planes = source.ctypes.data
    task.picture.plane, task.picture.line = rows * columns, columns
    task.picture.first_line = first_row - found.rectangle.first_row
    task.picture.first_column = found.rectangle.first_column


def _place(task: Task, found: QuantisedTask, places: Places) -> None:
    """Write the addresses of all but the source into ``task``."""
    task.made = places[found.result].ctypes.data
    for at, layer in enumerate(found.layers):
        held = task.layers[at]
        held.weights = places[layer.weights].ctypes.data
        held.bias = None if layer.bias is None else places[layer.bias].ctypes.data
        held.given, held.weight, held.made = (
            _scaled(each, places) for each in (layer.given, layer.weight, layer.made)
        )
        held.scales_apart = places[layer.weight.scale].size > 1
        held.zeros_apart = places[layer.weight.zero].size > 1
    if found.rectangle is not None:
        task.picture.made = _scaled(found.rectangle.made, places)
    if found.addition is not None:
        task.addition = _addition(found.addition, places)


def _addition(of: Sum, places: Places) -> Addition:
    return Addition(
        *(_scaled(each, places) for each in (of.first, of.second, of.made)),
        places[of.other].ctypes.data,
        of.over,
    )


def _scaled(of: Scaling, places: Places) -> Scaled:
    flip = _FLIP if of.signed else 0
    if not places:
        return Scaled(flip=flip)
    return Scaled(places[of.scale].ctypes.data, places[of.zero].ctypes.data, flip)


def _layer(of: QuantisedLayer) -> Layer:
    rows, columns = of.rows, of.columns
    return Layer(
        given=_scaled(of.given, {}),
        weight=_scaled(of.weight, {}),
        made=_scaled(of.made, {}),
        by_inputs=of.by_inputs,
        depthwise=of.depthwise,
        channels=of.channels,
        filters=of.filters,
        kernel_y=rows.kernel,
        kernel_x=columns.kernel,
        stride_y=rows.stride,
        stride_x=columns.stride,
        step_y=rows.step,
        step_x=columns.step,
        above=rows.before,
        left=columns.before,
        height=rows.given,
        width=columns.given,
        made_height=rows.made,
        made_width=columns.made,
    )
