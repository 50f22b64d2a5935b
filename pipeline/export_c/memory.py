"""Where values lie: in the arena, in what the caller gives, or inside each other.

First copies that need not be: a value that is all of another one, or a part of it, is the same memory where
nothing else has to lie there. Then steps that may write over what they read. What is left has a life, and
the planner of arenas gives it a place (pipeline/planning/arena.py), and so it does to the scratch of steps
that compute some rows at a time: as many as there is memory for. The smallest arena is that of one row at a
time. What other steps need at once is then free in most steps, so their bands are larger and overlap less:
rows that two bands need are made twice.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.export_c.lowering.calls import Bands, KernelStep, Same, StepProgram, ValuePointer
from pipeline.export_c.network.network import ExportError
from pipeline.planning.arena import plan_arena
from pipeline.program.lives import Lifetime

_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class PortPlace:
    """``offset`` bytes from the begin of ``port``, None: of the arena."""

    port: str | None
    offset: int


@dataclass(frozen=True)
class PlacedMemory:
    """``steps`` that are left, ``places`` of what they read and make, and the bytes of the arena.

    ``held``: bytes of the arena that are in use while each step runs.
    """

    steps: Sequence[KernelStep]
    places: Mapping[str, PortPlace]
    arena_bytes: int
    held: Sequence[int]


def scratch_of(step: KernelStep) -> str:
    """Return the name of the memory that only ``step`` uses, while it runs."""
    return f"{step.output} (scratch)"


def plan_memory(
    program: StepProgram, inputs: Sequence[str], outputs: Sequence[str], ports_inside: bool
) -> PlacedMemory:
    """Return where everything lies; ``ports_inside``: inputs and outputs are in the arena, too.

    Else they are the caller's: inputs are not written, an output is written from its first step on.
    """
    lies = _Lies(program, inputs, outputs, ports_inside)
    steps = tuple(
        step for step in program.steps if step.same is None or not lies.share(step, step.same)
    )
    lies.look_at(steps)
    for now, step in enumerate(steps, 1):
        lies.overwrite(now, step)
    return lies.placed(steps)


class _Lies:
    """Which value lies in which, and when each is in use."""

    def __init__(
        self,
        program: StepProgram,
        inputs: Sequence[str],
        outputs: Sequence[str],
        ports_inside: bool,
    ) -> None:
        self._values = program.values
        self._inputs, self._outputs = frozenset(inputs), frozenset(outputs)
        self._outside = frozenset() if ports_inside else self._inputs | self._outputs
        self._parent: dict[str, tuple[str, int]] = {}
        self._uses: dict[str, list[int]] = {}  # when each value is read or written
        self._last: dict[str, int] = {}  # when it is read the last time
        self._parts: Counter[str] = Counter()  # how many steps make it

    def _root(self, name: str) -> tuple[str, int]:
        offset = 0
        while name in self._parent:
            name, inner = self._parent[name]
            offset += inner
        return name, offset

    def _range(self, name: str) -> tuple[str, int, int]:
        root, start = self._root(name)
        return root, start, start + self._values[name].n_bytes

    def share(self, step: KernelStep, same: Same) -> bool:
        """Make the copy ``same`` needless, where that can be; return whether it is."""
        source, made = same.source, step.output
        whole_source = same.n_bytes == self._values[source].n_bytes
        whole_made = same.n_bytes == self._values[made].n_bytes
        if self._root(source)[0] == self._root(made)[0]:
            return self._root(source)[1] + same.source_offset == self._root(made)[1] + same.offset
        if whole_source and self._may_move(source):
            self._parent[source] = (made, same.offset)
            return True
        if whole_made and self._may_move(made):
            self._parent[made] = (source, same.source_offset)
            return True
        return False

    def _may_move(self, name: str) -> bool:
        return name not in self._parent and name not in self._inputs | self._outputs

    def look_at(self, steps: Sequence[KernelStep]) -> None:
        """Note when each value is read and written by ``steps``; moment 0 is before the first one."""
        self._use(0, self._inputs)
        for now, step in enumerate(steps, 1):
            self._use(now, (step.output, *step.reads))
            self._last |= dict.fromkeys(step.reads, now)
            self._parts[step.output] += 1
        self._use(len(steps) + 1, self._outputs)
        self._last |= dict.fromkeys(self._outputs, len(steps) + 1)

    def _use(self, now: int, names: Iterable[str]) -> None:
        for name in names:
            self._uses.setdefault(name, []).append(now)

    def overwrite(self, now: int, step: KernelStep) -> None:
        """Let ``step`` write over one of the values that it may, where that is not read any more."""
        for name in step.in_place:
            output = step.output
            if self._range(name) == self._range(output):
                return
            if self._values[name].n_bytes != self._values[output].n_bytes:
                continue
            if self._root(name)[0] in self._outside & self._inputs or self._parts[output] > 1:
                continue
            if not self._is_last(now, name) or self._disturbs(step, name):
                continue
            if self._may_move(output):
                self._parent[output] = (name, 0)
                return
            if self._may_move(name) and self._root(output)[0] != name:
                self._parent[name] = (output, 0)
                return

    def _is_last(self, now: int, name: str) -> bool:
        """Return whether no step reads the bytes of ``name`` after moment ``now``."""
        readers = (other for other, last in self._last.items() if last > now)
        return not any(self._overlap(name, other) for other in readers)

    def _disturbs(self, step: KernelStep, name: str) -> bool:
        """Return whether something else that ``step`` reads lies in ``name``, or it reads that twice."""
        if any(self._overlap(name, other) for other in step.reads if other != name):
            return True
        times = sum(item == ValuePointer(name) for item in step.all_arguments)
        return times > 1 and not step.pointwise

    def _overlap(self, one: str, other: str) -> bool:
        (root, start, end), (other_root, other_start, other_end) = map(self._range, (one, other))
        return root == other_root and max(start, other_start) < min(end, other_end)

    def placed(self, steps: Sequence[KernelStep]) -> PlacedMemory:
        lives = self._lives()
        for now, step in enumerate(steps, 1):
            if step.bands is not None and step.bands.n_bytes:
                lives[scratch_of(step)] = Lifetime(step.bands.n_bytes, now, now + 1)
        names = [name for name in lives if name not in self._outside]
        plan = plan_arena([lives[name] for name in names])
        places = {name: PortPlace(None, at) for name, at in zip(names, plan.offsets, strict=True)}
        places |= {name: PortPlace(name, 0) for name in self._outside}
        for name in self._uses:
            root, offset = self._root(name)
            if root != name:
                places[name] = replace(places[root], offset=places[root].offset + offset)
        static = [
            sum(lives[name].n_bytes for name in names if lives[name].start <= now < lives[name].end)
            for now in range(1, len(steps) + 1)
        ]
        return PlacedMemory(steps, places, plan.n_bytes, static)

    def _lives(self) -> dict[str, Lifetime]:
        """Return the life of each root: from when any part of it is written until all were read."""
        uses: dict[str, list[int]] = {}
        for name, moments in self._uses.items():
            uses.setdefault(self._root(name)[0], []).extend(moments)
        return {
            root: Lifetime(self._values[root].n_bytes, min(moments), max(moments) + 1)
            for root, moments in sorted(uses.items(), key=lambda item: (min(item[1]), item[0]))
        }


def plan_in_bands(
    program: StepProgram,
    inputs: Sequence[str],
    outputs: Sequence[str],
    ports_inside: bool,
    arena_bytes: int | None,
) -> PlacedMemory:
    """Return where everything lies in at most ``arena_bytes``, None: in as few as there can be.

    Raises:
        ExportError: it takes more; the message says how much at least.
    """

    def planned(rows: Mapping[str, int]) -> PlacedMemory:
        steps = tuple(_with_rows(step, rows.get(step.output, 1)) for step in program.steps)
        return plan_memory(replace(program, steps=steps), inputs, outputs, ports_inside)

    least = planned({})
    limit = least.arena_bytes if arena_bytes is None else arena_bytes
    if limit < least.arena_bytes:
        raise ExportError(
            f"the arena has {limit} bytes, the smallest that works {least.arena_bytes}"
        )
    wanted = limit
    for _ in range(_ATTEMPTS):
        memory = planned(_most_rows(least, wanted))
        if memory.arena_bytes <= limit:
            return memory
        wanted -= memory.arena_bytes - limit  # places leave gaps
    return least


def _with_rows(step: KernelStep, rows: int) -> KernelStep:
    return step if step.bands is None else replace(step, bands=replace(step.bands, rows=rows))


def _most_rows(least: PlacedMemory, n_bytes: int) -> dict[str, int]:
    """Return how many rows at a time each step can compute in an arena of ``n_bytes``, by its output."""
    return {
        step.output: _rows(step.bands, n_bytes - step_bytes + step.bands.n_bytes)
        for step, step_bytes in zip(least.steps, least.held, strict=True)
        if step.bands is not None
    }


def _rows(bands: Bands, n_bytes: int) -> int:
    """Return the most rows whose scratch takes ``n_bytes``, in bands as equal as they can be."""
    most = 1
    for rows in range(2, bands.height + 1):
        if replace(bands, rows=rows).n_bytes > n_bytes:
            break
        most = rows
    return -(-bands.height // -(-bands.height // most))
