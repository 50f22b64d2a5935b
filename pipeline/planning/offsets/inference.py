"""What follows from a partial placement: how low each buffer can still lie, and whether all can still fit.

The search places buffers upwards: nothing goes below a buffer once it lies. So the state is one number for
each buffer, ``lowest``, under which it cannot lie (FAR once it is placed), from which follow

- the floor of a section, which is the lowest of its buffers' numbers; a buffer lies above the floors of all
  its sections, which may lift floors again;
- a contradiction: the floor of a section and the bytes that still go above it exceed the capacity;
- what a buffer rests on. In the solution with the least sum of offsets nothing can be pushed down, so each
  buffer lies on the ground or on top of another. One that was refused its lowest place (``lifted``) waits
  for a buffer that is not placed yet, so it lies above the lowest top of those it meets.
"""

from dataclasses import dataclass

import numpy as np

from pipeline.planning.offsets.sections import FAR, Bools, Ints, Sections


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


def beginning(part: Sections, capacity: int) -> SearchState:
    """Return the state in which nothing is placed."""
    lowest = np.maximum(part.pin, 0)
    return SearchState(lowest, np.zeros(part.n_buffers, bool), capacity - part.load)


def tighten(part: Sections, state: SearchState) -> tuple[Ints, Ints]:
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
