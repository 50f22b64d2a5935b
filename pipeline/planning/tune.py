"""Searches the choices within a limit of weight memory for the fastest, judged by drafts of their plans.

First rings alone, for every size of chunks and reads; then part of the memory goes to resident weights
(pipeline/planning/tune.py); then the best is changed step by step as long as that helps; last, memory
that does not help is given back.
"""

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise, product
from math import inf

from loader.errors import LoaderError
from pipeline.planning.draft import Draft, Drafts, Judge, Level, idle_seconds
from pipeline.planning.make import chunk_limit
from pipeline.planning.plan import Choice, PlanError
from pipeline.planning.streaming import PAGE_BYTES, READ_BYTES, Unit, spaced
from pipeline.planning.words import sized
from pipeline.program.choice import chunk_sizes
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.timing.timeline import Timeline

# Which weights to keep in memory where reads are the bottleneck.
#
# What counts is the balance so far: the time of kernels up to a point against the bytes to be read up to
# it, less what the ring holds. The critical path of a sweep says where that balance is negative: reads on
# it delay the answer, others do not.

# Weights are kept in so many portions; after each the critical path is another one.
_PORTIONS = 6


def critical_reads(draft: Draft, line: Timeline) -> list[int]:
    """Return the reads that the delay waited for, from last to first.

    Walks back from the last end: what started when something else ended waited for that. Of operations that
    take no time several end at once: each step goes to an earlier one, so the walk ends.
    """
    path: list[int] = []
    groups = len(draft.groups)
    starts_of_reads = line.starts[0]
    released_by = {end: kernel for kernel, end in enumerate(line.ends[-1])}
    read_of = dict(zip(line.ends[0], range(len(line.ends[0])), strict=True))
    # What kernels wait for: reads, or their copies, which have the same numbers.
    brought = dict(zip(line.ends[-2], range(len(line.ends[-2])), strict=True))
    kernel = len(line.starts[-1]) - 1
    while kernel >= 0:
        start = line.starts[-1][kernel]
        if kernel and line.ends[-1][kernel - 1] == start:
            kernel -= 1
            continue
        read = brought.get(start)
        while read is not None:
            if read < groups:
                path.append(read)
            start = starts_of_reads[read]
            if start in released_by:
                break
            before = read_of.get(start) if start > 0 else None
            read = before if before is not None and before < read else None
        kernel = min(released_by.get(start, -1), kernel - 1) if read is not None else -1
    return path


def keep_critical(drafts: Drafts, choice: Choice, n_bytes: int) -> Choice:
    """Return ``choice`` with up to ``n_bytes`` more kept, those on the critical path first.

    Kernels as the bottleneck leave nothing on it: then the last weights are kept, which makes reads fewer.
    """
    portion = -(-n_bytes // _PORTIONS)
    while n_bytes > 0:
        draft = drafts.draft(choice)
        reads = critical_reads(draft, draft.idle) or range(len(draft.groups) - 1, -1, -1)
        candidates = [
            unit
            for read in reads
            for unit in reversed(
                draft.units[draft.groups[read].first_span : draft.groups[read].end_span]
            )
        ]
        taken = _take(candidates, min(portion, n_bytes)) or _take(candidates, n_bytes)
        if not taken:
            break
        spans = [span for unit in taken for span in unit.spans]
        n_bytes -= drafts.same.n_bytes(spans)
        choice = replace(choice, resident=drafts.same.with_same({*choice.resident, *spans}))
    return choice


def _take(units: list[Unit], n_bytes: int) -> list[Unit]:
    """Return the first of ``units`` that fit into ``n_bytes``."""
    taken = []
    for unit in units:
        if unit.length > n_bytes:
            break
        taken.append(unit)
        n_bytes -= unit.length
    return taken


# The search among all choices.

# The delay of a request right after another one, on a slower disk, counts a tenth: plans that are equal
# otherwise are compared by how they bear load and noise.
_LOAD_WEIGHT = 0.1
_SLOWER_READS = 1.25
# Memory is given back while the score grows by less.
_NO_WORSE = 1.001
_MIN_READ_BYTES = 64 << 10
_MOST_READ_BYTES = 4 * READ_BYTES
_SIZES_RATIO = 1.4
_READS_IN_RING = (1.5, 2, 3, 4, 6, 9, 14)
_DEPTHS = (1, 2, 4)
_RING_PARTS = (0.8, 0.6, 0.4, 0.25, 0.12, 0.06)
_FINALISTS = 3
# Improvement gains less than this.
_FAR = 1.1
#: Of improvement; a step that helps nothing ends it earlier.
ROUNDS = 4
# After so long improvement ends, on a machine that is no usual one: plans are the same on all others.
_MOST_SECONDS = 120.0
# Parts of about as many bytes of weights each.
_PARTS = 8


class PartChunks:
    """Changes the chunks of parts of ``program`` among ``sizes``, ascending.

    Fine ones suit where the ring drains fast, coarse ones elsewhere.
    """

    def __init__(self, program: Program, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._starts = part_starts(program)

    def changed(self, choice: Choice) -> Iterator[Choice]:
        """Yield ``choice`` with every other size of chunks in each part."""
        limits = self._limits(choice)
        for part, limit in enumerate(limits):
            for size in self._sizes:
                if size != limit:
                    yield self._with(choice, [*limits[:part], size, *limits[part + 1 :]])

    def _limits(self, choice: Choice) -> list[int]:
        """Return the limit of each part."""
        starts = [piece for piece, _ in choice.later_chunks]
        limits = [choice.chunk_bytes or 0, *(n_bytes for _, n_bytes in choice.later_chunks)]
        return [limits[bisect_right(starts, start)] for start in self._starts]

    def _with(self, choice: Choice, limits: Sequence[int]) -> Choice:
        later = tuple(
            (start, limit)
            for start, (before, limit) in zip(self._starts[1:], pairwise(limits), strict=True)
            if limit != before
        )
        return replace(choice, chunk_bytes=limits[0], later_chunks=later)


def part_starts(program: Program) -> list[int]:
    """Return the first piece of each part; none begins within a layer."""
    inside = {
        piece
        for item in program.alternatives
        for piece in range(item.first_piece + 1, item.end_piece)
    }
    total = sum(span.length for span in program.spans if not span.resident)
    starts, passed = [program.own.start], 0
    for number in program.own:
        piece = program.pieces[number]
        if number not in inside and passed * _PARTS >= total * len(starts) > 0:
            starts.append(number)
        if piece.span is not None:
            spans = program.spans[piece.span : piece.span + piece.n_spans]
            passed += sum(span.length for span in spans if not span.resident)
    return starts


class Tuner:
    """Searches the choices within ``limit`` bytes of weight memory for the least that ``judge`` returns.

    Where that is far from ``enough`` seconds there is no plan: one that is as fast is known. Deterministic.
    """

    def __init__(
        self,
        drafts: Drafts,
        limit: int,
        judge: Judge = idle_seconds,
        enough: float = inf,
    ) -> None:
        self._seconds_of = judge
        self._enough = enough
        self._narrow = False
        self.ended = ""
        self.complete = True
        self._program = program = drafts.program
        self._drafts = drafts
        self._limit = limit
        self._scores: dict[Choice, float] = {}
        self._until = time.monotonic() + _MOST_SECONDS
        self._least = inf
        smallest = drafts.smallest_bytes
        finest = drafts.level(program.largest_chunk_bytes)
        kept = finest.kept_bytes
        self._free = (limit - kept) // PAGE_BYTES * PAGE_BYTES
        self._room = drafts.largest_ring(self._free, finest.units)
        if limit < smallest:
            raise PlanError(
                f"{program.name}: {sized(limit)} of weights in memory are too few; the least is "
                f"{sized(smallest)}: {sized(smallest - kept)} for a ring of the largest chunk, and "
                f"{sized(kept)} that always stay; allow as much{drafts.chunk_advice}"
            )

    def best(self, rounds: int = ROUNDS) -> Draft:
        """Return the best draft that ``rounds`` of improvement find."""
        rings = self._ranked(self._rings())
        finalists = self._different(rings)
        self._narrow = True
        mixed = [self._split(choice, part) for choice in finalists for part in _RING_PARTS]
        best_choice = next(iter(self._ranked([*rings[:1], *mixed, *self._all_resident()])), None)
        if best_choice is None or self._is_far(best_choice):
            raise PlanError(f"{self._program.name}: nothing is as fast as what is known")
        self.ended = f"its {rounds} rounds of improvement were over"
        for _ in range(rounds):
            if time.monotonic() > self._until:
                self.ended = f"{_MOST_SECONDS:.0f} s were over"
                self.complete = False
                break
            better = self._ranked([best_choice, *self._changed(best_choice)])[0]
            if better == best_choice:
                self.ended = "no change of the best helped"
                break
            best_choice = better
        best_choice = self._trimmed(best_choice)
        draft, idle = (
            self._drafts.draft(item) for item in (best_choice, replace(best_choice, ahead="idle"))
        )
        # Beside the tail of a sweep the next one's head takes time from its kernels; a request right
        # after it must not lose by that.
        return draft if draft.again.delay_seconds <= idle.again.delay_seconds * _NO_WORSE else idle

    @property
    def effort(self) -> str:
        """What was tried, in words, and what ended that."""
        tried = f"{len(self._scores)} choices of ring, chunks, reads and residents"
        return f"{tried} were tried, until {self.ended}"

    def _is_far(self, choice: Choice) -> bool:
        """Return whether no improvement makes ``choice`` as fast as is enough."""
        return self._seconds_of(self._drafts.draft(choice)) > _FAR * self._enough

    def _ranked(self, choices: Iterable[Choice | None]) -> list[Choice]:
        """Return the choices that are possible, best first; of equals the first given."""
        known = {choice: self._score(choice) for choice in choices if choice is not None}
        return sorted((choice for choice in known if known[choice] < inf), key=known.__getitem__)

    def _score(self, choice: Choice) -> float:
        if choice not in self._scores:
            self._scores[choice] = self._judge(choice)
        return self._scores[choice]

    def _judge(self, choice: Choice) -> float:
        """Return the score; of what cannot be the best only that it is not, which is much quicker."""
        hopeless = self._least * _NO_WORSE
        kernels = self._level(choice).until[-1]
        if self._at_least(kernels) > hopeless or kernels > self._enough:
            return inf
        try:
            draft = self._drafts.draft(choice)
        except LoaderError:
            return inf
        if draft.weight_bytes > self._limit:
            return inf
        # Of rings those that are slow are ranked, too: the best of each size of chunks goes on.
        if self._narrow and self._at_least(draft.reads_seconds) > hopeless:
            return inf
        seconds = self._seconds_of(draft)
        if self._at_least(seconds) > hopeless:
            return self._at_least(seconds)
        score = seconds + _LOAD_WEIGHT * draft.slower(_SLOWER_READS).again.delay_seconds
        self._least = min(self._least, score)
        return score

    @staticmethod
    def _at_least(seconds: float) -> float:
        """Return what the score is at least where the delay is at least ``seconds``."""
        return seconds * (1 + _LOAD_WEIGHT)

    @cached_property
    def _sizes(self) -> list[int]:
        """Sizes of chunks that a ring within the limit can hold, not all too similar ones."""
        sizes = [size for size in chunk_sizes(self._program) if size <= self._room]
        usual = chunk_limit(self._program, ARCHITECTURES["2s"], Choice(self._room))
        return sorted(
            {*spaced(sizes, _SIZES_RATIO), *sizes[-1:], *([] if usual is None else [usual])}
        )

    @cached_property
    def _chunks(self) -> PartChunks:
        return PartChunks(self._program, self._sizes)

    def _level(self, choice: Choice) -> Level:
        return self._drafts.level_of(choice)

    def _rings(self) -> Iterator[Choice]:
        """Yield choices that give all memory to the ring, and last the smallest, which always fits.

        Others may not: what is stored of a read may be more than its share of the ring.
        """
        for chunk in self._sizes:
            ring = min(self._room, self._drafts.level(chunk).streamable_bytes)
            sizes = {
                max(min(int(ring / reads), most), _MIN_READ_BYTES)
                for reads in _READS_IN_RING
                for most in (READ_BYTES, _MOST_READ_BYTES)
            }
            for size, depth in product(sorted(sizes, reverse=True), _DEPTHS):
                yield Choice(ring, chunk, size, depth, (), ahead="tail")
        finest = self._program.largest_chunk_bytes
        least = self._drafts.level(finest).largest_bytes
        yield Choice(least, finest, PAGE_BYTES, 1, (), ahead="tail")

    def _different(self, ranked: list[Choice]) -> list[Choice]:
        """Return the best choice of each of the best sizes of chunks."""
        chunks: dict[int | None, Choice] = {}
        for choice in ranked:
            chunks.setdefault(choice.chunk_bytes, choice)
        return list(chunks.values())[:_FINALISTS]

    def _split(self, choice: Choice, part: float) -> Choice | None:
        """Return ``choice`` with ``part`` of the memory as its ring and the rest for resident weights."""
        return self._filled(replace(choice, resident=()), int(self._room * part))

    def _filled(self, choice: Choice, ring: int) -> Choice | None:
        """Return ``choice`` with a ring of about ``ring`` bytes, and all other memory used.

        None: no ring of that size can run it.
        """
        ring = min(max(ring, self._level(choice).largest_bytes), self._room)
        read = max(min(choice.read_bytes or 0, ring // 2), PAGE_BYTES)
        choice = replace(choice, ring_bytes=ring, read_bytes=read)
        try:
            taken = self._drafts.with_staging(ring, self._streamed(choice))
            choice = keep_critical(
                self._drafts, choice, self._free - taken - self._kept_bytes(choice)
            )
        except LoaderError:
            return None
        return replace(choice, ring_bytes=self._largest_ring(choice))

    def _largest_ring(self, choice: Choice) -> int:
        """Return the size of a ring that takes all that ``choice`` leaves."""
        left = self._free - self._kept_bytes(choice)
        return self._drafts.largest_ring(left, self._streamed(choice))

    def _streamed(self, choice: Choice) -> list[Unit]:
        kept = set(choice.resident)
        return [unit for unit in self._level(choice).units if not kept.issuperset(unit.spans)]

    def _kept_bytes(self, choice: Choice) -> int:
        kept = set(choice.resident)
        units = self._level(choice).units
        resident_units = (unit for unit in units if kept.issuperset(unit.spans))
        return self._drafts.same.n_bytes(span for unit in resident_units for span in unit.spans)

    def _all_resident(self) -> Iterator[Choice]:
        """Yield choices that keep everything, where that fits."""
        everything = tuple(
            index for index, span in enumerate(self._program.spans) if not span.resident
        )
        if self._drafts.all_resident_bytes <= self._limit:
            for chunk in self._sizes:
                yield Choice(0, chunk, PAGE_BYTES, 1, everything, ahead="tail")

    def _changed(self, choice: Choice) -> Iterator[Choice | None]:
        """Yield neighbours of ``choice``."""
        ring, read = choice.ring_bytes or 0, choice.read_bytes or 0
        for factor in (0.5, 0.7, 1.4, 2.0):
            yield replace(choice, read_bytes=max(int(read * factor), PAGE_BYTES))
        for depth in _DEPTHS:
            yield replace(choice, depth=depth)
        yield replace(choice, ahead="tail" if choice.ahead == "idle" else "idle")
        for chunk in self._sizes:
            yield self._filled(replace(choice, chunk_bytes=chunk, later_chunks=()), ring)
        yield from self._chunks.changed(choice)
        for factor in (0.6, 0.8, 0.9, 1.1, 1.25, 1.6):
            yield self._filled(replace(choice, resident=()), int(ring * factor))
        kept = choice.resident
        for eighth in range(8):
            start, end = len(kept) * eighth // 8, len(kept) * (eighth + 1) // 8
            if start < end:
                yield self._filled(replace(choice, resident=(*kept[:start], *kept[end:])), ring)

    def _trimmed(self, choice: Choice) -> Choice:
        """Return ``choice`` with the smallest ring that is no worse."""
        enough = self._score(choice) * _NO_WORSE
        low, high = 0, (choice.ring_bytes or 0) // PAGE_BYTES
        while high - low > max(high // 50, 1):
            middle = (low + high) // 2
            if self._score(replace(choice, ring_bytes=middle * PAGE_BYTES)) <= enough:
                high = middle
            else:
                low = middle
        return replace(choice, ring_bytes=high * PAGE_BYTES)
