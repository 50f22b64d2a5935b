"""How long each buffer of activations must be kept, derived from what the calls of a plan read and write.

Time is counted in calls: call t of an inference happens at moment t. A buffer is live from the moment in
which the oldest bytes of a read were written to that of the read, and whenever it is written. So a line
buffer of a region, which is written anew in every phase, is live in each of them and not between them.

It knows nothing of what planners suppose (pipeline/program/lives.py): it judges that.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from models.packs.records.ports import Port
from pipeline.planning.calls import BufferView, KernelGroup, PlanLaunch, launches_of
from pipeline.planning.plan import Plan, PlanBuffer
from pipeline.program.program import Program

# Parts of buffers, as calls read and write them.

Box = tuple[range, range, range]


class Footprint(NamedTuple):
    """Bytes of a buffer from ``first`` to before ``end``: all of them, or those of ``box`` of an array.

    The array [planes, rows, elements] begins at ``base``; ``strides``: bytes of each of these.
    """

    first: int
    end: int
    base: int = 0
    strides: tuple[int, int, int] = (0, 0, 0)
    box: Box | None = None

    def covers(self, other: "Footprint") -> bool:
        """Return whether all of ``other`` is known to lie in this one."""
        if self.first > other.first or other.end > self.end:
            return False
        if self.box is None:
            return True
        if other.box is None or (self.base, self.strides) != (other.base, other.strides):
            return False
        a, b, c = self.box
        x, y, z = other.box
        return (
            (a.start <= x.start and x.stop <= a.stop)
            and (b.start <= y.start and y.stop <= b.stop)
            and (c.start <= z.start and z.stop <= c.stop)
        )

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield its bytes as ranges that follow each other."""
        if self.box is None:
            yield self.first, self.end
            return
        planes, rows, elements = self.box
        plane, row, element = self.strides
        for i, j in product(planes, rows):
            start = self.base + i * plane + j * row
            yield start + elements.start * element, start + elements.stop * element


def footprint(view: BufferView) -> Footprint:
    """Return the bytes of ``view`` in its buffer; what lies there without gaps is a range of bytes."""
    size = _item_bytes(view.dtype)
    if view.box is None:
        for length in view.shape:
            size *= length
        return Footprint(view.offset, view.offset + size)
    _, rows, elements = view.shape
    row = elements * size
    return _footprint_of(view.offset, (rows * row, row, size), view.box)


@lru_cache(maxsize=64)
def _item_bytes(dtype: str) -> int:
    return np.dtype(dtype).itemsize


def _footprint_of(base: int, strides: tuple[int, int, int], box: Box) -> Footprint:
    planes, rows, elements = box
    plane, row, element = strides
    # Arrays that follow each other, as values in a concatenation do, are parts of one.
    skipped, base = divmod(base, plane)
    planes = range(planes.start + skipped, planes.stop + skipped)
    first = base + planes.start * plane + rows.start * row + elements.start * element
    end = base + (planes.stop - 1) * plane + (rows.stop - 1) * row + elements.stop * element
    full_rows = len(elements) * element == row
    if full_rows and (len(planes) == 1 or len(rows) * row == plane):
        return Footprint(first, end)
    return Footprint(first, end, base, strides, (planes, rows, elements))


def without(one: Footprint, other: Footprint) -> list[Footprint]:
    """Return what is left of ``one`` without ``other``."""
    if one.end <= other.first or other.end <= one.first:
        return [one]
    if other.covers(one):
        return []
    base, strides = (one.base, one.strides) if one.box else (other.base, other.strides)
    if one.box is None and other.box is None:
        ends = (one.first, other.first), (other.end, one.end)
        return [Footprint(start, end) for start, end in ends if start < end]
    left, removed = _boxes(one, base, strides), _boxes(other, base, strides)
    if left is not None and removed is not None:
        for box in removed:
            left = [rest for item in left for rest in _boxes_without(item, box)]
        return [_footprint_of(base, strides, box) for box in left]
    runs = list(one.runs())
    for start, end in other.runs():
        runs = [
            piece
            for a, b in runs
            for piece in ((a, min(b, start)), (max(a, end), b))
            if piece[0] < piece[1]
        ]
    return [Footprint(a, b) for a, b in runs]


def _boxes(what: Footprint, base: int, strides: tuple[int, int, int]) -> list[Box] | None:
    """Return ``what`` as boxes of an array; None: it is no such, not even of complete rows."""
    if what.box is not None:
        return [what.box] if (what.base, what.strides) == (base, strides) else None
    plane, row, element = strides
    first, rest = divmod(what.first - base, row)
    end, over = divmod(what.end - base, row)
    if rest or over or plane % row:
        return None
    rows, elements = range(plane // row), range(row // element)
    (low, head), (high, tail) = divmod(first, len(rows)), divmod(end, len(rows))
    if low == high:
        return [(range(low, low + 1), range(head, tail), elements)]
    boxes = []
    if head:
        boxes.append((range(low, low + 1), range(head, len(rows)), elements))
        low += 1
    if low < high:
        boxes.append((range(low, high), rows, elements))
    if tail:
        boxes.append((range(high, high + 1), range(tail), elements))
    return boxes


def _boxes_without(one: Box, other: Box) -> Iterator[Box]:
    """Yield what is left of a box of an array without another box of it."""
    rest = list(one)
    for axis in range(len(rest)):
        inside, removed = rest[axis], other[axis]
        low, high = max(inside.start, removed.start), min(inside.stop, removed.stop)
        if low >= high:
            yield rest[0], rest[1], rest[2]
            return
        for outside in (range(inside.start, low), range(high, inside.stop)):
            if outside:
                piece = [*rest[:axis], outside, *rest[axis + 1 :]]
                yield piece[0], piece[1], piece[2]
        rest[axis] = range(low, high)


# What happens to one buffer.

Moments = tuple[int, int]


@dataclass
class BufferLiveness:
    """The moments, first and last, in which a buffer is live; they do not overlap, and ascend."""

    live: list[Moments] = field(default_factory=list)
    _written: list[tuple[int, Footprint]] = field(default_factory=list)

    def write(self, moment: int, what: Footprint) -> None:
        self._written = [pair for pair in self._written if not what.covers(pair[1])]
        self._written.append((moment, what))
        self._add(moment, moment)

    def read(self, moment: int, what: Footprint) -> bool:
        """Note a read; return whether all of it was written before."""
        left, oldest = [what] if what.first < what.end else [], moment
        for when, written in reversed(self._written):
            if not left:
                break
            if len(left) == 1 and written.covers(left[0]):
                oldest, left = min(oldest, when), []
                break
            rest = [piece for item in left for piece in without(item, written)]
            if rest != left:
                oldest, left = min(oldest, when), rest
        self._add(oldest, moment)
        return not left

    def _add(self, first: int, last: int) -> None:
        while self.live and self.live[-1][1] >= first:
            before = self.live.pop()
            first, last = min(first, before[0]), max(last, before[1])
        self.live.append((first, last))


# All that happens in an inference.


_MAX_GROUPS = 200


class _Access(NamedTuple):
    """A read or a write of ``what`` in ``buffer``, whose liveness it changes."""

    liveness: BufferLiveness
    buffer: PlanBuffer
    what: Footprint


class _GroupUse(NamedTuple):
    """What a group of calls uses: buffers of ``weights``, and what each call reads and writes."""

    weights: frozenset[int]
    calls: list[tuple[list[_Access], list[_Access]]]


@dataclass
class MemoryUse:
    """What the calls of ``plan`` do to its buffers.

    ``liveness``: of each buffer that is written. ``uses``: of each buffer of weights, the first and
    the last step that reads it. ``starts[i]``: the moment of the first call of step i, at last the moment
    after all calls. ``faults``: in words.
    """

    plan: Plan
    liveness: dict[int, BufferLiveness] = field(default_factory=dict)
    uses: dict[int, tuple[int, int]] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    #: Of the last groups, by their ids: phases that follow each other have most in common.
    _groups: dict[int, _GroupUse] = field(default_factory=dict)

    def launch(self, launch: PlanLaunch, moment: int) -> int:
        """Note what ``launch`` does from ``moment`` on; return when it has ended."""
        steps = launch.steps
        self.starts += [moment] * len(steps)
        for group in launch.groups:
            weights, calls = self._use_of(group)
            for buffer in weights:
                first, last = self.uses.get(buffer, (steps.start, steps.start))
                self.uses[buffer] = min(first, steps.start), max(last, steps.stop - 1)
            for reads, writes in calls:
                self._read(reads, moment)
                for access in writes:
                    access.liveness.write(moment, access.what)
                moment += 1
        return moment

    def _read(self, reads: Iterable[_Access], moment: int) -> None:
        for access in reads:
            if not access.liveness.read(moment, access.what):
                self.faults.append(f"{named(access.buffer)} is read before all of it is written")

    def _use_of(self, group: KernelGroup) -> _GroupUse:
        """Return what ``group`` uses; phases have groups in common."""
        cached = self._groups.get(group.id)
        if cached is None:
            views = [
                [[view for view in ports if isinstance(view, BufferView)] for ports in call[1:]]
                for call in group.calls
            ]
            weights = {view.buffer for reads, _ in views for view in reads}
            if len(self._groups) > _MAX_GROUPS:
                self._groups.clear()
            cached = self._groups[group.id] = _GroupUse(
                frozenset(i for i in weights if self.plan.buffers[i].holds == "weights"),
                [(self._accesses(reads), self._accesses(writes, True)) for reads, writes in views],
            )
        return cached

    def _accesses(self, views: Iterable[BufferView], writes: bool = False) -> list[_Access]:
        """Return what happens to buffers of activations, and note what is not as it must be."""
        accesses = []
        for view in views:
            buffer = self.plan.buffers[view.buffer]
            end = view.offset + _item_bytes(view.dtype) * prod(view.shape)
            if view.offset < 0 or end > buffer.n_bytes:
                where = f"{view.offset} to {end}"
                self.faults.append(
                    f"{named(buffer)} has {buffer.n_bytes} bytes, a call uses {where}"
                )
            if buffer.holds != "weights" and buffer.space != "request":
                liveness = self.liveness.setdefault(view.buffer, BufferLiveness())
                accesses.append(_Access(liveness, buffer, footprint(view)))
            elif writes:
                self.faults.append(f"{named(buffer)} is written by a call")
        return accesses

    def put(self, ports: Iterable[Port], moment: int) -> None:
        """Note that ``ports`` are written, as a request gives them."""
        for access in self._accesses(self._views(ports)):
            access.liveness.write(moment, access.what)

    def take(self, ports: Iterable[Port], moment: int) -> None:
        """Note that ``ports`` are read."""
        self._read(self._accesses(self._views(ports)), moment)

    def _views(self, ports: Iterable[Port]) -> Iterator[BufferView]:
        for port in ports:
            location = self.plan.values[port.value]
            if location is not None:
                yield BufferView(location.buffer, location.offset, port.dtype, port.shape)
            elif not port.is_loose:
                self.faults.append(f"{port.name} has no buffer")


def named(buffer: PlanBuffer) -> str:
    """Return what messages call ``buffer``."""
    return f"{buffer.holds} {buffer.id} in {buffer.space}"


def memory_use(program: Program, plan: Plan) -> MemoryUse:
    """Return what an inference of ``plan``, which is of ``program``, does to its buffers.

    Raises:
        InvalidPlanError: something that a step uses has no buffer.
    """
    use = MemoryUse(plan)
    use.put(program.inputs, -1)
    moment = 0
    for launch in launches_of(plan):
        moment = use.launch(launch, moment)
    use.starts.append(moment)
    use.take(program.outputs, moment)
    return use
