"""When memory of activations is in use: values between pieces, and strips of regions.

Time is counted in moments, from the number of the first piece on: a piece is one, a region one for each
of its operators. All phases of a region
are the same moments: values that a phase keeps for the next one live through all of them, others only
from their maker to their last reader.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pipeline.program.program import PreparedPiece, Program
from pipeline.program.shared_memory import roots
from pipeline.program.steps import Phase, Step, in_arena, spans_of

#: Of values and strips; what the disk writes to is aligned to pages.
ALIGNMENT, PAGE_BYTES = 64, 4096


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Something of ``n_bytes`` that must be kept during moments [start, end), aligned."""

    n_bytes: int
    start: int
    end: int
    alignment: int = ALIGNMENT

    @property
    def takes_room(self) -> bool:
        return self.n_bytes > 0 and self.start < self.end

    @property
    def padded_bytes(self) -> int:
        """The room that it takes: its bytes, rounded up to its alignment."""
        return -(-self.n_bytes // self.alignment) * self.alignment


def never_whole(program: Program, steps: Sequence[Step]) -> frozenset[int]:
    """Return the values that no step reads or writes but in parts: regions take rows from these.

    So parts may lie anywhere, each only as long as it is needed.
    """
    used = {port.value for port in (*program.inputs, *program.outputs)}
    for step in steps:
        if isinstance(step, PreparedPiece):
            operands = (*step.inputs, *step.outputs)
            used |= {operand.index for operand in operands if operand.kind == "value"}
        elif step.number == 0:
            plan = step.region.plan
            used |= {program.row_values[number].value for number in plan.read | plan.written}
    return frozenset(value for value in program.made(joins) if value not in used)


def joins(program: Program) -> dict[int, list[int]]:
    """Return the values that others lie in, with these, where no two of them overlap."""
    inside: dict[int, list[int]] = {}
    for index, value in enumerate(program.values):
        if value.parent is not None and program.values[value.parent].parent is None:
            inside.setdefault(value.parent, []).append(index)
    return {whole: parts for whole, parts in inside.items() if _disjoint(program, parts)}


def _disjoint(program: Program, parts: Sequence[int]) -> bool:
    places = sorted((program.values[part].offset, program.values[part].n_bytes) for part in parts)
    return all(
        start + n_bytes <= following for (start, n_bytes), (following, _) in pairwise(places)
    )


def lifetimes(
    program: Program,
    steps: Sequence[Step] | None = None,
    apart: frozenset[int] = frozenset(),
    kept: Collection[int] = (),
) -> tuple[Lifetime, ...]:
    """Return the lives of each value's memory, of all regions' strips, and of weights in the arena.

    Graph inputs live from the first moment, outputs until after the last one. Values that lie in another
    one have no life of their own (start == end); their root lives for all of them. Nor has what exists
    only as rows, and what is ``taken_by_rows``. ``apart``: what exists only as
    its parts, as ``roots`` have it. ``kept``: spans that are resident.
    """
    steps = program.own_pieces if steps is None else steps
    lives = _Lives(program, steps, apart, kept)
    for step in steps:
        if isinstance(step, PreparedPiece):
            lives.add_piece(step)
        elif step.number == 0:
            lives.add_region(step)
    return lives.found()


def placed(
    program: Program, steps: Sequence[Step], apart: frozenset[int] = frozenset()
) -> list[tuple[int, int]]:
    """Return, for each value, the value whose memory it lies in where ``steps`` run, and its offset there.

    What a region writes over another value lies there. What would lie in one of ``apart`` has memory of
    its own.
    """
    regions = [step.region.plan for step in steps if isinstance(step, Phase) and not step.number]
    over = {
        program.row_values[new].value: program.row_values[old].value
        for plan in regions
        for new, old in plan.over
    }
    alone = {program.row_values[value].value for plan in regions for value in plan.alone}
    return roots(program, over, apart, alone)


def taken_by_rows(program: Program, steps: Sequence[Step]) -> frozenset[int]:
    """Return the inputs, as values, that only regions and pieces by rows read.

    They take rows from the request's own array.

    What bottlenecks in groups of channels read is in memory: a picture makes whole rows, which each band
    would ask for again.
    """
    regions = [step.region.plan for step in steps if isinstance(step, Phase) and not step.number]
    by_rows = {program.row_values[value].value for plan in regions for value in plan.read}
    pieces = [step for step in steps if isinstance(step, PreparedPiece)]
    by_rows |= {piece.inputs[0].index for piece in pieces if piece.reads_rows}
    in_memory = {
        program.row_values[value].value
        for plan in regions
        if not plan.region.cut.takes_rows
        for value in plan.read
    }
    inputs = {port.value for port in program.inputs if not port.is_loose}
    taken = inputs & by_rows
    if not taken:
        return frozenset()
    read = {
        operand.index
        for piece in pieces
        for operand in piece.inputs[1 if piece.reads_rows else 0 :]
        if operand.kind == "value"
    }
    read |= {port.value for port in program.outputs}
    shared = {value.parent for value in program.values}
    return frozenset(
        index for index in taken - in_memory - read - shared if program.values[index].parent is None
    )


class _Lives:
    """Collects the first and the last moment of each value, as these go on."""

    def __init__(
        self,
        program: Program,
        steps: Sequence[Step],
        apart: frozenset[int],
        kept: Collection[int],
    ) -> None:
        self._program = program
        self._kept = kept
        self._taken = taken_by_rows(program, steps)
        self._places = placed(program, steps, apart)
        inside = program.made(joins) if apart else {}
        self._parts = {whole: inside[whole] for whole in apart}
        first = program.own.start
        self._starts: dict[int, int] = {port.value: first for port in program.inputs}
        self._ends = dict.fromkeys(self._starts, first + 1)
        self._strips: list[Lifetime] = []
        self._weights: list[Lifetime] = []
        self._now = first

    def add_piece(self, piece: PreparedPiece) -> None:
        now = self._now
        self._now = end = now + 1
        for operand in (*piece.inputs, *piece.outputs):
            if operand.kind == "value":
                self._starts.setdefault(operand.index, now)
                self._ends[operand.index] = end

    def add_region(self, phase: Phase) -> None:
        """Add all phases of a region: what it reads and writes whole lives through all of it."""
        plan = phase.region.plan
        count = plan.moments
        if in_arena(phase) and not all(span in self._kept for span in spans_of(phase)):
            n_bytes = sum(self._program.spans[span].length for span in spans_of(phase))
            self._weights.append(Lifetime(n_bytes, self._now, self._now + count, PAGE_BYTES))
        for row_value in plan.read | plan.written:
            self._use(self._program.row_values[row_value].value, count)
        for strip in plan.strips:
            start, end = self._now + strip.start, self._now + strip.end
            self._strips.append(Lifetime(strip.n_bytes, start, end))
        self._now += count

    def found(self) -> tuple[Lifetime, ...]:
        for port in self._program.outputs:
            self._use(port.value, 1)
        values = self._program.values
        uses = self._of_roots()
        lives = [
            Lifetime(value.n_bytes, *uses[index]) if index in uses else _NO_LIFE
            for index, value in enumerate(values)
        ]
        return (*lives, *self._strips, *self._weights)

    def _use(self, value: int, moments: int) -> None:
        self._starts.setdefault(value, self._now)
        self._ends[value] = self._now + moments

    def _of_roots(self) -> dict[int, tuple[int, int]]:
        """Return the first and the last moment of each root: of all that lies in it."""
        moments: dict[int, tuple[int, int]] = {}
        for value, start in self._starts.items():
            if value in self._taken:
                continue
            end = self._ends[value]
            for part in self._parts.get(value, (value,)):
                root = self._places[part][0]
                first, last = moments.get(root, (start, end))
                moments[root] = (min(first, start), max(last, end))
        return moments


_NO_LIFE = Lifetime(0, 0, 0)
