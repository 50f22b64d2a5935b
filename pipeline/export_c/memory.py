"""Where values lie: in the arena, in what the caller gives, or inside each other.

First copies that need not be: a value that is all of another one, or a part of it, is the same memory where
nothing else wants to lie there. Then steps that may write over what they read. What is left has a life, and
the planner of arenas gives it a place (pipeline/planning/arena.py), and so it does to the scratch of steps
that compute some rows at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.export_c.lowering.steps import Pointer, Program, Same, Step
from pipeline.planning.arena import plan_arena
from pipeline.program.lives import Lifetime


@dataclass(frozen=True, slots=True)
class Place:
    """``offset`` bytes from the begin of ``port``, None: of the arena."""

    port: str | None
    offset: int


@dataclass(frozen=True)
class Memory:
    """``steps`` that are left, ``places`` of what they read and make, and the bytes of the arena.

    ``held``: bytes of the arena that are in use while each step runs. ``lower_bound_bytes``: no
    arrangement of the same values takes less.
    """

    steps: Sequence[Step]
    places: Mapping[str, Place]
    arena_bytes: int
    lower_bound_bytes: int
    held: Sequence[int]


def scratch_of(step: Step) -> str:
    """Return the name of the memory that only ``step`` uses, while it runs."""
    return f"{step.output} (scratch)"


def plan_memory(
    program: Program, inputs: Sequence[str], outputs: Sequence[str], ports_inside: bool
) -> Memory:
    """Return where everything lies; ``ports_inside``: inputs and outputs are in the arena, too.

    Else they are the caller's: inputs are not written, an output is written from its first step on.
    """
    lies = _Lies(program, inputs, outputs, ports_inside)
    steps = tuple(
        step for step in program.steps if step.same is None or not lies.share(step, step.same)
    )
    lies.look_at(steps)
    for number, step in enumerate(steps):
        lies.overwrite(number, step)
    return lies.placed(steps)


class _Lies:
    """Which value lies in which, and when each is in use."""

    def __init__(
        self, program: Program, inputs: Sequence[str], outputs: Sequence[str], ports_inside: bool
    ) -> None:
        self._values = program.values
        self._inputs, self._outputs = frozenset(inputs), frozenset(outputs)
        self._outside = frozenset() if ports_inside else self._inputs | self._outputs
        self._parent: dict[str, tuple[str, int]] = {}
        self._read: dict[str, list[int]] = {}
        self._written: dict[str, list[int]] = {}
        self._last = 0

    def _root(self, name: str) -> tuple[str, int]:
        offset = 0
        while name in self._parent:
            name, inner = self._parent[name]
            offset += inner
        return name, offset

    def _range(self, name: str) -> tuple[str, int, int]:
        root, start = self._root(name)
        return root, start, start + self._values[name].n_bytes

    def share(self, step: Step, same: Same) -> bool:
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

    def look_at(self, steps: Sequence[Step]) -> None:
        """Note when each value is read and written by ``steps``."""
        for number, step in enumerate(steps):
            self._written.setdefault(step.output, []).append(number)
            for name in step.reads:
                self._read.setdefault(name, []).append(number)
        self._last = len(steps)
        for name in self._outputs:
            self._read.setdefault(name, []).append(self._last)
        for name in self._inputs:
            self._written.setdefault(name, []).append(-1)

    def overwrite(self, number: int, step: Step) -> None:
        """Let ``step`` write over one of the values that it may, where nobody reads that any more."""
        for name in step.in_place:
            made = step.output
            if self._range(name)[1:] == self._range(made)[1:] and self._root(name) == self._root(
                made
            ):
                return
            if self._values[name].n_bytes != self._values[made].n_bytes:
                continue
            if self._root(name)[0] in self._outside & self._inputs or len(self._written[made]) > 1:
                continue
            if not self._is_last(number, name) or self._disturbs(step, name):
                continue
            if self._may_move(made):
                self._parent[made] = (name, 0)
                return
            if self._may_move(name) and not self._within(name, made):
                self._parent[name] = (made, 0)
                return

    def _is_last(self, number: int, name: str) -> bool:
        """Return whether nobody reads the bytes of ``name`` after step ``number``."""
        readers = (other for other, numbers in self._read.items() if max(numbers) > number)
        return not any(self._overlap(name, other) for other in readers)

    def _disturbs(self, step: Step, name: str) -> bool:
        """Return whether something else that ``step`` reads lies in ``name``, or it reads that twice."""
        if any(self._overlap(name, other) for other in step.reads if other != name):
            return True
        times = sum(item == Pointer(name) for item in step.all_arguments)
        return times > 1 and not step.pointwise

    def _within(self, name: str, other: str) -> bool:
        return self._root(other)[0] == name

    def _overlap(self, one: str, other: str) -> bool:
        (root, start, end), (other_root, other_start, other_end) = map(self._range, (one, other))
        return root == other_root and max(start, other_start) < min(end, other_end)

    def placed(self, steps: Sequence[Step]) -> Memory:
        lives = self._lives() | _scratch_lives(steps)
        names = [name for name in lives if name not in self._outside]
        plan = plan_arena(tuple(lives[name] for name in names))
        bases = {name: Place(None, at) for name, at in zip(names, plan.offsets, strict=True)}
        bases |= {name: Place(name, 0) for name in self._outside}
        places = {}
        for name in {*self._read, *self._written}:
            root, offset = self._root(name)
            places[name] = replace(bases[root], offset=bases[root].offset + offset)
        places |= {name: place for name, place in bases.items() if name not in self._values}
        held = [
            sum(lives[name].n_bytes for name in names if lives[name].start <= now < lives[name].end)
            for now in range(1, len(steps) + 1)
        ]
        return Memory(steps, places, plan.n_bytes, plan.lower_bound_bytes, held)

    def _lives(self) -> dict[str, Lifetime]:
        """Return the life of each root: from when any part of it is written until all were read."""
        uses: dict[str, list[int]] = {}
        for name in {*self._read, *self._written}:
            root, _ = self._root(name)
            moments = (*self._read.get(name, ()), *self._written.get(name, ()))
            uses.setdefault(root, []).extend(moments)
        return {
            root: Lifetime(self._values[root].n_bytes, min(moments) + 1, max(moments) + 2)
            for root, moments in sorted(uses.items(), key=lambda item: (min(item[1]), item[0]))
        }


def _scratch_lives(steps: Sequence[Step]) -> dict[str, Lifetime]:
    """Return the life of each scratch: its step."""
    return {
        scratch_of(step): Lifetime(step.bands.n_bytes, number + 1, number + 2)
        for number, step in enumerate(steps)
        if step.bands is not None and step.bands.n_bytes
    }
