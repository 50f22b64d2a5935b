"""Whether a capacity is enough: a search with restarts that ends with a placement, a proof, or its limit.

In the manner of MiniMalloc (Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated
Machine Learning", ASPLOS 2023), whose canonical solutions, section inference and preorders it shares. What
differs: a node places a buffer that rests on a flat floor or refuses it that place, which leaves free where
in time to go on; so the search goes where fewest buffers fit. Where it fails often it goes earlier
next time, and the buffers there move forward in its order.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import TypeAlias

import numpy as np

from pipeline.planning.offsets.heuristic import Floats, keys, ranks
from pipeline.planning.offsets.problem import FAR, Bools, Ints, Sections


@dataclass
class Limit:
    """``nodes`` that are left, and time until ``clock()`` reaches ``deadline``, in seconds."""

    nodes: int
    clock: Callable[[], float]
    deadline: float

    @property
    def reached(self) -> bool:
        return self.nodes <= 0 or self.clock() >= self.deadline

    @contextmanager
    def share(self, part: float) -> Iterator["Limit"]:
        """Lend a limit of a part of what is left; the nodes that it used are taken off in the end."""
        now = self.clock()
        nodes = ceil(self.nodes * part)
        lent = Limit(nodes, self.clock, now + (self.deadline - now) * part)
        yield lent
        self.nodes -= nodes - lent.nodes


# What follows from a partial placement: how low each buffer can still lie, and whether all can still fit.
#
# The search places buffers upwards: nothing goes below a buffer once it lies. So the state is one number
# for each buffer, ``lowest``, under which it cannot lie (FAR once it is placed), from which follow
#
# - the floor of a section, which is the lowest of its buffers' numbers; a buffer lies above the floors of
#   all its sections, which may lift floors again;
# - a contradiction: the floor of a section and the bytes that still go above it exceed the capacity;
# - what a buffer rests on. In the solution with the least sum of offsets nothing can be pushed down, so
#   each buffer lies on the ground or on top of another. One that was refused its lowest place (``lifted``)
#   waits for a buffer that is not placed yet, so it lies above the lowest top of those it meets.


@dataclass
class SearchState:
    """A node of the search. ``latest[s]``: the highest floor that section s can have; FAR: it is done."""

    lowest: Ints
    lifted: Bools
    latest: Ints

    def place(self, part: Sections, buffer: int, capacity: int) -> "SearchState":
        """Return the state after ``buffer`` was placed at its lowest offset."""
        size = part.size[buffer]
        rest = part.round_up(np.full(part.n_buffers, self.lowest[buffer] + size))
        above = part.meets[buffer] & (self.lowest <= rest)
        lowest = np.where(above, rest, self.lowest)
        lowest[buffer] = FAR
        lifted = self.lifted & ~above
        lifted[buffer] = False
        latest = self.latest.copy()
        span = latest[part.first[buffer] : part.end[buffer]]
        span += size
        span[span == capacity] = FAR
        return SearchState(lowest, lifted, latest)

    def refuse(self, part: Sections, buffer: int) -> None:
        """Exclude that ``buffer``, or one like it, lies at its lowest offset."""
        at = self.lowest[buffer]
        alike = part.alike[buffer] & (self.lowest == at)
        self.lowest[alike] = at + part.alignment[buffer]
        self.lifted[alike] = True


def _beginning(part: Sections, capacity: int) -> SearchState:
    """Return the state in which nothing is placed."""
    lowest = np.maximum(part.pin, 0)
    return SearchState(lowest, np.zeros(part.n_buffers, bool), capacity - part.load)


def _tighten(part: Sections, state: SearchState) -> tuple[Ints, Ints]:
    """Raise ``state.lowest`` to what follows from it; return floors and sections without a solution.

    The floors end with a 0 that stands for no section. If a section has no solution, nothing else counts.
    """
    while True:
        floor = np.minimum.reduceat(state.lowest[part.members], part.begin)
        failed = (floor > state.latest).nonzero()[0]
        floor = np.append(floor, 0)
        if len(failed):
            return floor, failed
        lowest = np.maximum(np.maximum.reduceat(floor, part.ranges)[::2], state.lowest)
        _lift(part, state, lowest)
        _pass_pins(part, lowest)
        lowest = part.round_up(lowest)
        if len(part.pinned):
            misplaced = part.pinned[(lowest > part.pin)[part.pinned] & (lowest < FAR)[part.pinned]]
            if len(misplaced):
                return floor, part.first[misplaced]
        if (lowest == state.lowest).all():
            return floor, failed
        state.lowest = lowest


def _lift(part: Sections, state: SearchState, lowest: Ints) -> None:
    """Put what was refused its place on top of something that is not placed yet."""
    waiting = state.lifted.nonzero()[0]
    if len(waiting):
        tops = (lowest + part.size + part.distance[waiting]).min(axis=1)
        lowest[waiting] = np.maximum(lowest[waiting], np.minimum(tops, FAR // 2))


def _pass_pins(part: Sections, lowest: Ints) -> None:
    """Put what would lie in a pinned buffer on top of it."""
    for buffer in part.pinned:
        pin, end = part.pin[buffer], part.pin[buffer] + part.size[buffer]
        if lowest[buffer] < FAR:
            inside = part.meets[buffer] & (lowest < end) & (lowest + part.size > pin)
            lowest[inside] = end


# The search.

FIRST_FAILURES = 100  # of one dive: searches succeed after few failures or hardly ever
GROWTH = 1.1  # of it, each time all orders had their turn
NOISE = 0.05  # of the logarithm of a key, where blame is added
FRESH_NOISE = 0.2  # in every other round, without blame: what was learned may be wrong
SMALL = 20  # buffers of a part in which a proof is likely, so that limits grow faster
BLAME = 3.0  # the logarithm by which the worst section alone would move a buffer forward


@dataclass(frozen=True)
class ExactOffsets:
    """``offsets`` in units for the buffers of a part; None: there are none if ``proven``, else unknown."""

    offsets: Ints | None
    proven: bool


def search(part: Sections, capacity: int, limit: Limit) -> ExactOffsets:
    """Return a placement of ``part`` in ``capacity`` units, or whether there is none."""
    if (part.load > capacity).any():
        return ExactOffsets(None, proven=True)
    random = np.random.default_rng(0)
    arms = [
        _Arm(choose, key) for key in keys(part) for choose in (_lowest_section, _tightest_section)
    ]
    failures = float(FIRST_FAILURES)
    learned = True
    while not limit.reached:
        for arm in arms:
            noise = random.normal(0, NOISE if learned else FRESH_NOISE, part.n_buffers)
            rank = ranks(arm.key + noise + arm.blame * learned)
            dive = Dive(part, capacity, rank, arm.choose, int(failures))
            answer = dive.run(limit)
            if answer.proven or limit.reached:
                return answer
            if learned:
                arm.blame += BLAME * dive.blame()
        failures *= max(GROWTH, 1 + SMALL / part.n_buffers)
        learned = not learned
    return ExactOffsets(None, proven=False)


Chooser: TypeAlias = Callable[["Dive", SearchState, Ints, Bools], int]


@dataclass
class _Arm:
    """A way to order dives, and what the last ones have taught about it."""

    choose: Chooser
    key: Floats
    blame: Floats | float = 0.0


@dataclass
class Dive:
    """A depth-first search with a limit of failures.

    ``rank``: where several buffers could lie, the lowest goes first. ``choose``: where to go on.
    """

    part: Sections
    capacity: int
    rank: Ints
    choose: Chooser
    max_failures: int
    failures: int = 0
    weights: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.weights = np.ones(len(self.part.begin), np.int64)

    def run(self, limit: Limit) -> ExactOffsets:
        state = _beginning(self.part, self.capacity)
        offsets = np.zeros(self.part.n_buffers, np.int64)
        path: list[tuple[SearchState, int]] = []
        while True:
            floor, failed = _tighten(self.part, state)
            if len(failed):
                self.failures += 1
                self.weights[failed] += 1
                if not path:
                    return ExactOffsets(None, proven=True)
                state, buffer = path.pop()
                state.refuse(self.part, buffer)
            elif (state.lowest == FAR).all():
                return ExactOffsets(offsets, proven=True)
            else:
                limit.nodes -= 1
                buffer = self._next(state, floor)
                offsets[buffer] = state.lowest[buffer]
                path.append((state, buffer))
                state = state.place(self.part, buffer, self.capacity)
            if self.failures >= self.max_failures or limit.reached:
                return ExactOffsets(None, proven=False)

    def blame(self) -> Floats:
        """Return for each buffer the share of failures that the worst of its sections had."""
        shares = np.append((self.weights - 1) / max(1, (self.weights - 1).sum()), 0)
        by_buffer: Floats = np.maximum.reduceat(shares, self.part.ranges)[::2]
        return by_buffer

    def _next(self, state: SearchState, floor: Ints) -> int:
        """Return the first buffer in order that can lie flat on the floor of the section chosen."""
        least = np.minimum.reduceat(floor, self.part.ranges)[::2]
        flat = (least == state.lowest) & (state.lowest < FAR)  # nothing to come can go under it
        here = self.part.members[self.part.of(self.choose(self, state, floor[:-1], flat))]
        here = here[flat[here]]
        return int(here[self.rank[here].argmin()])

    def fitting(self, state: SearchState) -> Ints:
        """Return for each section how many buffers could be the next one in it."""
        fits = state.lowest[self.part.members] <= state.latest[self.part.section_of]
        return np.add.reduceat(fits, self.part.begin, dtype=np.int64)


def _tightest_section(dive: Dive, state: SearchState, _: Ints, flat: Bools) -> int:
    """Choose, where something can lie flat, the section in which fewest fit; then in which most failed."""
    part = dive.part
    some = np.maximum.reduceat(flat[part.members], part.begin)
    share = dive.weights / (dive.weights.max() + 1)
    return int(np.where(some, dive.fitting(state) - share, np.inf).argmin())


def _lowest_section(dive: Dive, state: SearchState, floor: Ints, _: Bools) -> int:
    """Choose, of the lowest sections, that where fewest fit for its failures; something lies flat there."""
    score = dive.fitting(state) / dive.weights
    return int(np.where(floor == floor.min(), score, np.inf).argmin())
